"""Who may do what: every command of every protocol, issued by every kind of client."""
