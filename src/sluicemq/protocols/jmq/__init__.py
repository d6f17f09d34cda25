"""JMQ, Open MQ's JMS protocol 4.1, and what clients up to level 500 add to it."""
