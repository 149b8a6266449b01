"""What requests and answers look like in JSON, one file for each noun."""
