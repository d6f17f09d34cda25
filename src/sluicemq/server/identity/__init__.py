"""Who the clients are and what they may do.

records    what the user database holds, and the form of its file
changes    database in, database out: every change that can be made
store      the file: read when it has changed, replaced as a whole under a lock
passwords  argon2id; the MD5 form that digest logins need
tokens     random secrets that stand for a user
throttle   who has failed too often, and until when
checks     passwords checked off the event loop, a bounded number at a time
audit      what is written down about all that
gate       the whole, as the sessions see it (`sluicemq.protocols.access`)
"""
