"""Child processes of the supervisor: trainers, and the process that reads an uploaded file."""
