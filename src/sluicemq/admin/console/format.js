// Formatting of numbers, sizes in bytes, and times in ms since the epoch.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";

/** 12,345 */
export function count(value) {
  return Number.isFinite(value) ? whole.format(value) : NONE;
}

/** 12,345 below a hundred thousand, 1.2M above: for the large readings and the axes. */
export function compact(value) {
  if (!Number.isFinite(value)) return NONE;
  return Math.abs(value) < 100_000 ? whole.format(value) : short.format(value);
}

/** A number per second, with one decimal place if it is small. */
export function rate(value) {
  if (!Number.isFinite(value)) return NONE;
  if (value !== 0 && value < 0.05) return "<0.1";
  return value < 10 && value !== 0 ? tenths.format(value) : compact(Math.round(value));
}

/** 12/s */
export function perSecond(value) {
  return Number.isFinite(value) ? `${rate(value)}/s` : NONE;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

/** 3.2 MiB */
export function bytes(value) {
  if (!Number.isFinite(value)) return NONE;
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < SIZES.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? whole.format(size) : tenths.format(size)} ${SIZES[unit]}`;
}

/** A short duration in ms: 0.42 ms, 13 ms, 1.2 s. */
export function millis(value) {
  if (!Number.isFinite(value)) return NONE;
  if (value >= 1000) return `${tenths.format(value / 1000)} s`;
  if (value >= 10 || value === 0) return `${whole.format(value)} ms`;
  return `${value.toFixed(value >= 1 ? 1 : 2)} ms`;
}

const SPANS = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** A duration in ms: 3 d 4 h, 12 min 5 s. Two units at most. */
export function duration(value) {
  if (!Number.isFinite(value)) return NONE;
  let seconds = Math.floor(value / 1000);
  if (seconds < 1) return value > 0 ? "<1 s" : "0 s";
  const parts = [];
  for (const [size, unit] of SPANS) {
    const amount = Math.floor(seconds / size);
    if (amount > 0) parts.push(`${amount} ${unit}`);
    else if (parts.length) break;
    seconds -= amount * size;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

function pad(number, width = 2) {
  return String(number).padStart(width, "0");
}

/** 14:03:27 in the browser's time zone. */
export function timeOfDay(value, withSeconds = true) {
  const at = new Date(value);
  const seconds = withSeconds ? `:${pad(at.getSeconds())}` : "";
  return `${pad(at.getHours())}:${pad(at.getMinutes())}${seconds}`;
}

/** UTC, UTC+01:00: the offset of the browser's time zone at that time. */
function zone(at) {
  const minutes = -at.getTimezoneOffset();
  if (minutes === 0) return "UTC";
  const size = Math.abs(minutes);
  return `UTC${minutes < 0 ? "-" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}

/** 2026-03-01 14:03:27 UTC+01:00 in the browser's time zone. */
export function moment(value) {
  if (!Number.isFinite(value) || value <= 0) return NONE;
  const at = new Date(value);
  if (Number.isNaN(at.getTime())) return NONE;
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${timeOfDay(value)} ${zone(at)}`;
}

/** "1 message", "3 messages". */
export function plural(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}
