"""Users, roles, permissions, authentication and the audit log.

records        content of the user database, and the form of its file
changes        every change that can be made, as a function from database to database
store          the file: read when it has changed, replaced under a lock
passwords      argon2id; the MD5 form that digest logins need
tokens         random secrets that stand for a user
failures       table of failed logins: who is refused from where, and for how long
login_queue    password checks off the event loop: few at a time, fair between addresses
logins         the decision on the credentials of a login
upgrades       replacement of stored hashes by the current form
audit          audit log
user_snapshot  the users at one moment, indexed for logins
settings       what the authentication needs to know of configuration and connections
access         authentication of one connection, as sessions see it
authenticator  implementation of `access`
management     users and roles, as the administration sees and changes them
"""
