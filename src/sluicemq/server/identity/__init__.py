"""Authentication of clients, their permissions, and the user database.

records        what the user database holds, and the form of its file
changes        database in, database out: every change that can be made
store          the file: read when it has changed, replaced as a whole under a lock
passwords      argon2id; the MD5 form that digest logins need
tokens         random secrets that stand for a user
failures       the table of failed logins: who is refused from where, and for how long
login_queue    checks of passwords off the event loop: few at a time, fair between addresses
logins         what a client shows, and whom it admits
audit          what is written down about all that
user_snapshot  the users at one moment, indexed for logins
authenticator  the whole, as the sessions see it (`sluicemq.protocols.access`)
management     the user database as the administration sees and changes it
"""
