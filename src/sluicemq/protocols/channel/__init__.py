"""What the sessions of all protocols share: connection, publisher and consumer."""
