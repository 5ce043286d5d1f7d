"""The examples, run as their pages say, against the real packages and stores."""
