// Latest entries of the audit log.

import { get } from "../api.js";
import { h, replaceContent } from "../dom.js";
import { every } from "../live.js";
import { emptyState, head, loading, panel, badge, timeElement } from "../parts.js";
import { Table } from "../table.js";

export const title = () => "Audit";

const REFRESH_MS = 5_000;
const MAX_ENTRIES = 200;
/** Fields with columns of their own; the others are details. */
const COLUMN_FIELDS = new Set(["time", "event", "user", "peer", "operation", "action", "result"]);

export function show({ signal }) {
  const table = new Table({ caption: "Audit log", stack: true, key: keyOf, columns: COLUMNS });
  const content = h("div", null, table.element);
  const refresh = loading(
    content,
    async () => {
      const { items } = await get("audit", { limit: MAX_ENTRIES }, signal);
      table.update(items);
      if (!items.length)
        replaceContent(
          content,
          emptyState(
            "The audit log is empty",
            h("p", null, "Logins, rejected requests and all changes are recorded here."),
          ),
        );
      else if (content.firstChild !== table.element) replaceContent(content, table.element);
    },
    signal,
  );
  every(REFRESH_MS, refresh, signal);
  const aside = h("p", { class: "about" }, `The last ${MAX_ENTRIES} entries; the log file has all of them.`);
  return h("div", { class: "page" }, head("Audit", { aside }), panel(null, content));
}

function keyOf(line) {
  return JSON.stringify(line);
}

function details(line) {
  const more = Object.entries(line).filter(([name]) => !COLUMN_FIELDS.has(name));
  return more.map(([name, value]) => `${name}=${value}`).join(" ");
}

const COLUMNS = [
  { key: "time", label: "Time", fingerprint: ({ time }) => String(time), show: ({ time }) => timeElement(time) },
  { key: "event", label: "Event", show: ({ event }) => event ?? "" },
  { key: "user", label: "User", head: true, show: ({ user }) => user || "–" },
  { key: "peer", label: "From", rank: 2, show: ({ peer }) => peer ?? "" },
  {
    key: "operation",
    label: "Operation",
    fingerprint: keyOf,
    show: (line) => h("code", null, [line.operation, details(line)].filter(Boolean).join(" ")),
  },
  {
    key: "result",
    label: "Result",
    fingerprint: ({ result }) => result ?? "",
    show: ({ result }) => result && badge(result, result === "done" ? "good" : "bad"),
  },
];
