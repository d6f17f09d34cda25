// Scales of charts and gauges: end and marks of an axis, level of a backlog.

const ROUND = [1, 1.5, 2, 3, 4, 5, 6, 8, 10];

/** Return the next round number at or above `value`; its half is round, too. */
export function ceiling(value, least) {
  const minimum = Math.max(value, least);
  const power = 10 ** Math.floor(Math.log10(minimum));
  return (ROUND.find((step) => minimum <= step * power * 1.0001) ?? 10) * power;
}

const MINUTE = 60_000;
const STEPS = [1, 2, 5, 10, 15, 30, 60].map((minutes) => minutes * MINUTE);

/** Return round times (ms) for the marks of an axis from `start` to `end`, at most `most`. */
export function times(start, end, most) {
  const step = STEPS.find((size) => (end - start) / size <= most) ?? STEPS.at(-1);
  // round in the user's time zone, which may be off by half an hour
  const shift = new Date(end).getTimezoneOffset() * MINUTE;
  const marks = [];
  for (let at = Math.ceil((start - shift) / step) * step + shift; at <= end; at += step) {
    marks.push(at);
  }
  return marks;
}

/** Powers of ten of the gauge, which ends at a million. */
export const DECADES = 6;

/** Return the position of a number of messages on a logarithmic scale from 0 to 1, on which one
    message is visible as well as a million. */
export function level(messages) {
  if (!(messages > 0)) return 0;
  return Math.min(1, Math.log10(messages + 1) / DECADES);
}
