"""Child processes of the supervisor: trainers and the reader of uploads."""
