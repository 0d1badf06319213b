"""`tunesmith demo`: from nothing to a tuned model, with numbers. The one user of the SDK here."""
