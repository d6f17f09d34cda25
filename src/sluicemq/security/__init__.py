"""Users, roles, permissions, authentication and the audit log.

records        content of the user database with tokens, its file, its index for logins
changes        every change that can be made, as a function from database to database
store          the file: read when it has changed, replaced under a lock
passwords      argon2id, the bcrypt hashes of VibeMQ, the MD5 form that digest logins need
failures       table of failed logins: who is refused from where, and for how long
login_queue    password checks off the event loop: few at a time, fair between addresses
logins         the decision on the credentials of a login
upgrades       replacement of stored hashes by the current form
audit          audit log
access         authentication of one connection, as sessions see it
authenticator  implementation of `access`
user_service   operations of the management API on users, roles and tokens
"""
