// The pages of the console: paths, labels, shortcut keys and required rights.

import { session } from "./session.js";

/** `step` is the first segment of the path; `keys` is the key of the shortcut after `g`. */
export const PAGES = [
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

/** Pages without an entry in the navigation. */
const OTHER_PAGES = new Map([
  ["queue", () => import("./pages/destination.js")],
  ["topic", () => import("./pages/destination.js")],
  ["account", () => import("./pages/account.js")],
]);

/** Return the pages that the user may see. */
export function visiblePages() {
  return PAGES.filter((page) => !page.superuser || session.superuser);
}

/** Return the loader of a page by the first segment of its path, or null. */
export function loader(step = "") {
  return PAGES.find((page) => page.step === step)?.load ?? OTHER_PAGES.get(step) ?? null;
}

/** Return the first segment of the navigation entry that a page belongs to. */
export function entry(step = "") {
  return step === "queue" || step === "topic" ? "destinations" : step;
}
