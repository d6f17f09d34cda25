-- Turnover of each customer: of several messages about an order, the newest counts.
CREATE MATERIALIZED VIEW turnover AS
SELECT customer, sum(amount) AS amount
FROM (
  SELECT id, max_by(customer, sequence) AS customer, max_by(amount, sequence) AS amount
  FROM orders
  WHERE id IS NOT NULL
  GROUP BY id
)
GROUP BY customer
