// The journal on disk, its retention slots, and the writers of batches.

import { get, remove } from "../api.js";
import { openForm } from "../dialogs.js";
import { h, replaceContent } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { List } from "../list.js";
import { every } from "../live.js";
import { button, command, emptyState, valueList, head, loading, panel, badge, timeElement } from "../parts.js";
import { Pager, Table } from "../table.js";
import { notify } from "../notifications.js";

export const title = () => "Journal & pipeline";

const REFRESH_MS = 5_000;
const SIZE = 20;

export function show({ signal }) {
  return new JournalPage(signal).element;
}

class JournalPage {
  constructor(signal) {
    this.signal = signal;
    this.page = 1;
    this.summary = h("div");
    this.slots = new Table({
      caption: "Slots",
      stack: true,
      key: ({ name }) => name,
      columns: slotColumns((slot) => this.delete(slot)),
    });
    this.slotsNone = h("div", { hidden: true }, noSlots());
    this.segments = new Table({
      caption: "Segments",
      key: ({ first_sequence: first }) => first,
      columns: SEGMENTS,
    });
    this.pager = new Pager("Segments", (page) => {
      this.page = page;
      this.showSegments();
    });
    this.writers = new List({
      path: "batches",
      inUrl: false,
      interval: REFRESH_MS,
      table: {
        caption: "Batch writers",
        stack: true,
        key: ({ writer }) => writer,
        columns: WRITERS,
      },
      emptyContent: noWriters,
      signal,
    });
    this.rows = h("div", { class: "page" });
    this.content = [
      panel("Retention slots", [this.slots.element, this.slotsNone], {
        aside: h("span", { class: "hint" }, "A slot retains the segments that its reader still needs."),
      }),
      panel("Batch writers", this.writers.element),
      panel("Segments", [this.segments.element, this.pager.element]),
    ];
    this.refresh = loading(this.rows, () => this.load(), signal);
    this.element = h(
      "div",
      { class: "page" },
      head("Journal & pipeline"),
      panel(null, this.summary),
      this.rows,
    );
    every(REFRESH_MS, () => this.refresh(), signal);
  }

  async load() {
    const [journal, { items: slots }] = await Promise.all([
      get("journal", {}, this.signal),
      get("journal/slots", { limit: 500 }, this.signal),
    ]);
    const { durable, segments } = journal;
    const size = segments.reduce((sum, segment) => sum + segment.size, 0);
    const list = valueList([
      ["Format", String(journal.format_version)],
      ["Earliest sequence", count(journal.earliest_sequence)],
      ["Durable sequence", count(durable.sequence)],
      ["Size", `${bytes(size)} in ${plural(segments.length, "segment")}`],
    ]);
    list.classList.add("many");
    replaceContent(this.summary, list);
    this.slots.update(slots.map((slot) => ({ ...slot, ...lag(slot, journal) })));
    this.slots.element.hidden = slots.length === 0;
    this.slotsNone.hidden = slots.length > 0;
    this.all = [...segments].reverse();
    this.showSegments();
    if (!this.rows.contains(this.segments.element)) replaceContent(this.rows, this.content);
  }

  showSegments() {
    const from = (this.page - 1) * SIZE;
    this.segments.update(this.all.slice(from, from + SIZE));
    this.pager.update({ page: this.page, size: SIZE, total: this.all.length });
  }

  async delete({ name, records, held }) {
    const done = await openForm({
      title: `Delete the slot ${name}?`,
      text: [
        `Its reader lags by ${count(records)} records; the ${bytes(held)} of segments retained for it may then be removed.`,
        "The reader may permanently miss records.",
      ],
      action: "Delete",
      tone: "danger",
      submit: () => remove(`journal/slots/${encodeURIComponent(name)}`),
    });
    if (!done) return;
    notify(`Slot ${name} deleted`);
    this.refresh();
  }
}

/** Return the lag of a reader: records, and bytes of the segments that it still needs. */
function lag(slot, { segments }) {
  const records = slot.lag_records;
  const needed = segments.filter((segment, index) => {
    const next = segments[index + 1];
    return !next || next.first_sequence > slot.position + 1;
  });
  return { records, held: records ? needed.reduce((sum, { size }) => sum + size, 0) : 0 };
}

function slotColumns(ondelete) {
  return [
    {
      key: "name",
      label: "Slot",
      head: true,
      fingerprint: ({ name, lost, idle_expired: idle }) => `${name} ${lost} ${idle}`,
      show: ({ name, lost, idle_expired: idle }) => [
        h("span", { class: "name" }, name),
        lost && badge(idle ? "lost (idle)" : "lost", "bad"),
      ],
    },
    {
      key: "position",
      label: "Position",
      number: true,
      rank: 2,
      show: ({ position }) => count(position),
    },
    {
      key: "records",
      label: "Lag (records)",
      number: true,
      show: ({ records }) => count(records),
    },
    { key: "held", label: "Retained", number: true, show: ({ held }) => bytes(held) },
    {
      key: "limit_bytes",
      label: "Limit",
      number: true,
      rank: 2,
      show: (slot) => bytes(slot.limit_bytes),
    },
    {
      key: "delete",
      label: "Actions",
      hidden: true,
      number: true,
      fingerprint: ({ name }) => name,
      show: (slot, latest) =>
        button("Delete…", () => ondelete(latest()), { tone: "quiet small", name: `Delete ${slot.name}…` }),
    },
  ];
}

const SEGMENTS = [
  {
    key: "first_sequence",
    label: "First sequence",
    head: true,
    show: ({ first_sequence: first }) => count(first),
  },
  { key: "size", label: "Size", number: true, show: ({ size }) => bytes(size) },
  {
    key: "created",
    label: "Created",
    rank: 2,
    fingerprint: ({ created }) => String(created),
    show: ({ created }) => timeElement(created / 1000), // µs
  },
  {
    key: "sealed",
    label: "State",
    fingerprint: ({ sealed }) => String(sealed),
    show: ({ sealed }) => (sealed ? "sealed" : badge("open", "good")),
  },
];

const WRITERS = [
  {
    key: "writer",
    label: "Writer",
    head: true,
    fingerprint: ({ writer }) => writer,
    show: ({ writer }) => h("span", { class: "name" }, writer),
  },
  {
    key: "owner",
    label: "Owner",
    rank: 2,
    fingerprint: ({ owner }) => owner,
    show: ({ owner }) => owner,
  },
  { key: "batch", label: "Latest batch", number: true, show: ({ batch }) => count(batch) },
  { key: "rows", label: "Rows", number: true, show: ({ rows }) => count(rows) },
  {
    key: "partitions_done",
    label: "Completed partitions",
    number: true,
    rank: 2,
    show: (item) => count(item.partitions_done),
  },
  {
    key: "parts_open",
    label: "Open parts",
    number: true,
    rank: 2,
    show: (item) => count(item.parts_open),
  },
  {
    key: "last_seen",
    label: "Last seen",
    fingerprint: ({ last_seen: seen }) => String(seen),
    show: ({ last_seen: seen }) => timeElement(seen),
  },
];

function noSlots() {
  return emptyState(
    "No retention slots",
    h("p", null, "A pipeline creates its slot when it starts:"),
    command(`sluicemq pipeline run --lake ./lake --url ${location.origin}`),
  );
}

function noWriters() {
  return emptyState(
    "No batch writers",
    h("p", null, "Pipelines that write batches into queues exactly once are listed here."),
  );
}
