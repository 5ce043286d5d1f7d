"""What is shipped: built, installed into clean environments, and used there by small programs."""
