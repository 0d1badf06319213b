"""`tunesmith demo`: from data to a tuned model, with figures. Only this package uses the SDK."""
