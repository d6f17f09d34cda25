"""Open MQ: files of a broker's instance directory.

<instance>/props/config.properties      settings.py
           etc/passwd                   access.py
           etc/accesscontrol.properties access.py
           lock                         there while the broker runs
           fs370/destination            store.py     over records.py and serial.py
                 interest
                 message/<destination>/vrfile, 0, 1, …
                 txnlog                 transactions.py
                 incompleteTxnStore/vrfile, 0, 1, …
                 txn, txnack            (without the new transaction log)
"""
