"""What is sent and when, as lengths and block ids: one form for traces, generators and capture."""
