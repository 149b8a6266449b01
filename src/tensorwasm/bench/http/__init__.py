"""The service over HTTP as its clients see it, beside the JavaScript runtimes that people use for this."""
