-- Counts can be added; the backlog is the last one known in the hour.
SELECT
  broker,
  destination,
  date_trunc('HOUR', minute) AS hour,
  sum(published) AS published,
  sum(acknowledged) AS acknowledged,
  sum(dead_lettered) AS dead_lettered,
  sum(published_bytes) AS published_bytes,
  max_by(backlog, depth_time) AS backlog
FROM {{ source('gold', 'traffic') }}
GROUP BY ALL
