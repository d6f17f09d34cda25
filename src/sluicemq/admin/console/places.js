// The pages there are: where, what they are called, which keys lead there, and who sees them.

import { session } from "./session.js";

/** `step` is the first of the path; `keys` go after `g`. */
export const PLACES = [
  { step: "", label: "Overview", keys: "o", load: () => import("./pages/overview.js") },
  {
    step: "destinations",
    label: "Destinations",
    keys: "d",
    load: () => import("./pages/destinations.js"),
  },
  {
    step: "dead-letters",
    label: "Dead letters",
    keys: "l",
    load: () => import("./pages/dead_letters.js"),
  },
  {
    step: "connections",
    label: "Connections",
    keys: "c",
    load: () => import("./pages/connections.js"),
  },
  {
    step: "transactions",
    label: "Transactions",
    keys: "t",
    superuser: true,
    load: () => import("./pages/transactions.js"),
  },
  {
    step: "journal",
    label: "Journal & pipeline",
    keys: "j",
    superuser: true,
    load: () => import("./pages/journal.js"),
  },
  {
    step: "users",
    label: "Users",
    keys: "u",
    superuser: true,
    load: () => import("./pages/users.js"),
  },
  {
    step: "audit",
    label: "Audit",
    keys: "a",
    superuser: true,
    load: () => import("./pages/audit.js"),
  },
  {
    step: "configuration",
    label: "Configuration",
    keys: "s",
    superuser: true,
    load: () => import("./pages/configuration.js"),
  },
];

/** Pages that no list names: one has to come from somewhere. */
const OTHERS = new Map([
  ["queue", () => import("./pages/destination.js")],
  ["topic", () => import("./pages/destination.js")],
  ["account", () => import("./pages/account.js")],
]);

/** Those that the user may see. */
export function visible() {
  return PLACES.filter((place) => !place.superuser || session.superuser);
}

/** What loads the page of a first step; null if there is none. */
export function loader(step = "") {
  return PLACES.find((place) => place.step === step)?.load ?? OTHERS.get(step) ?? null;
}

/** The entry of the list that a page belongs to. */
export function entry(step = "") {
  return step === "queue" || step === "topic" ? "destinations" : step;
}
