// Durations and sizes as typed in forms, in the units of the configuration file: `30 s`, `5 min`,
// `10 MiB`. A plain number is in ms or bytes.

const QUANTITY = /^(\d{1,18}(?:\.\d{1,9})?)\s*([A-Za-z]{0,3})$/;

/** Units by kind of field, from small to large. */
const UNITS = {
  ms: { ms: 1, s: 1000, min: 60_000, h: 3_600_000, d: 86_400_000 },
  bytes: {
    B: 1,
    kB: 1000,
    KiB: 1024,
    MB: 1000 ** 2,
    MiB: 1024 ** 2,
    GB: 1000 ** 3,
    GiB: 1024 ** 3,
  },
};
/** Units that are used for output. */
const SHOWN = { ms: ["ms", "s", "min", "h", "d"], bytes: ["B", "KiB", "MiB", "GiB"] };

/** Return whether values of fields of this kind have a unit. */
export function hasUnit(kind) {
  return kind in UNITS;
}

/** Return the number of ms or bytes, null for an empty text, and NaN for an invalid one. */
export function parseQuantity(kind, text) {
  const trimmed = text.trim();
  if (!trimmed) return null;
  const [, number, unit] = QUANTITY.exec(trimmed) ?? [];
  const factor = unit ? UNITS[kind][unit] : 1;
  const value = number === undefined ? NaN : Math.round(Number(number) * factor * 1e6) / 1e6;
  return Number.isSafeInteger(value) ? value : NaN;
}

/** Return the text in the largest unit that divides the value: `90 s`, `10 MiB`; `0` for 0. */
export function formatQuantity(kind, value) {
  if (value === null || value === undefined || value === "") return "";
  if (value === 0) return "0";
  const unit = SHOWN[kind].findLast((name) => value % UNITS[kind][name] === 0);
  return `${value / UNITS[kind][unit]} ${unit}`;
}

/** Return the error message for an invalid text, or "". */
export function quantityProblem(kind, text) {
  if (!Number.isNaN(parseQuantity(kind, text))) return "";
  return `Enter a whole number of ${kind}, or a number with one of the units ${SHOWN[kind].join(", ")}`;
}
