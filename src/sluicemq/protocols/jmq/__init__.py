"""JMQ, Open MQ's JMS protocol 4.1, with the additions of clients up to level 500."""
