"""Users, roles, permissions, authentication and the audit log.

records        the user database: its records, its index for logins, its changes, and its file
passwords      argon2id, the bcrypt hashes of VibeMQ, the MD5 form that digest logins need
failures       table of failed logins: who is refused from where, and for how long
logins         the decision on the credentials of a login: password checks off the event loop, few
               at a time and fair between addresses; replacement of migrated hashes
audit          audit log
access         authentication of one connection, as sessions see it
authenticator  implementation of `access`
user_service   operations of the management API on users, roles and tokens
"""
