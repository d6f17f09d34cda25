"""Authorization tests: every command of every protocol, issued by every kind of client."""
