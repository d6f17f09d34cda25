WITH totals AS (
  SELECT
    broker,
    destination,
    sum(published) AS published,
    sum(dead_lettered) AS dead_lettered,
    max_by(backlog, hour) FILTER (WHERE backlog IS NOT NULL) AS backlog
  FROM {{ ref('destination_hours') }}
  GROUP BY broker, destination
),
found AS (
  SELECT broker, destination, count(*) AS anomalies
  FROM {{ source('gold', 'anomalies') }}
  GROUP BY broker, destination
)
SELECT
  totals.*,
  try_divide(dead_lettered, published) AS dead_letter_rate,
  coalesce(anomalies, 0) AS anomalies
FROM totals
LEFT JOIN found USING (broker, destination)
ORDER BY anomalies DESC, dead_letter_rate DESC, broker, destination
