// The overview: rates, backlogs and the state of the broker.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { receiveCommand, sendCommand } from "../commands.js";
import { h, replaceContent, setText } from "../dom.js";
import { bytes, compact, count, plural, millis, perSecond, rate, duration } from "../format.js";
import { gauge, levelBar } from "../gauge.js";
import { every, live, setOverview, watch } from "../live.js";
import { DestinationRef } from "../destination_ref.js";
import { session } from "../session.js";
import { command, emptyState, valueList, updateValueList, head, loading, panel, reading, badge } from "../parts.js";
import { Table } from "../table.js";

export const title = () => "Overview";

const MINUTES = [10, 30, 60];
/** Interval of the requests for data that the stream does not contain, in ms. */
const REFRESH_MS = 5_000;
const MAX_ROWS = 8;

export function show({ signal }) {
  const page = new Overview(signal);
  watch((overview) => page.update(overview), signal);
  if (live.overview?.history) page.draw(live.overview.history);
  every(REFRESH_MS, () => page.refresh(), signal);
  return page.element;
}

class Overview {
  constructor(signal) {
    this.minutes = MINUTES[0];
    this.about = h("p", { class: "about" });
    this.alarms = h("div", { class: "alarms" });
    this.welcome = h("div");
    this.level = gauge("Ready messages");
    this.readings = {
      in: reading("Publish rate", "accent"),
      ready: reading("Ready"),
      unacked: reading("Unacked"),
      out: reading("Deliver rate", "accent-alt"),
    };
    this.charts = charts();
    this.largestBacklogs = largestBacklogs();
    this.journal = h("div");
    this.protocols = protocols();
    this.listeners = listeners();
    // only superusers receive them
    this.listenersPanel = panel("Listeners", this.listeners.element);
    this.listenersPanel.hidden = !session.superuser;
    const noDestinations = session.superuser ? "There are no destinations yet." : "You may not see any destination.";
    this.noDestinations = h("p", { class: "hint", hidden: true }, noDestinations);
    this.content = h("div", null, this.largestBacklogs.element, this.noDestinations);
    this.backlogs = h("div", null, this.content);
    this.refresh = loading(this.backlogs, (request) => this.load(request), signal);
    this.element = this.build();
  }

  build() {
    return h(
      "div",
      { class: "page" },
      head("Overview", { aside: this.about, actions: [this.rangeSelect()] }),
      this.alarms,
      this.welcome,
      panel(
        null,
        h(
          "div",
          { class: "flow" },
          h("div", { class: "flow-gauge" }, this.level.element),
          h(
            "div",
            { class: "readings" },
            Object.values(this.readings).map(({ element }) => element),
          ),
          this.charts.flow.element,
        ),
        { kind: "hero" },
      ),
      h(
        "div",
        { class: "columns-3" },
        panel(null, this.charts.depth.element),
        panel(null, this.charts.lag.element),
        panel(null, this.charts.sync.element),
      ),
      h(
        "div",
        { class: "columns-2" },
        panel("Largest backlogs", this.backlogs, {
          aside: h("a", { href: "#/destinations" }, "All destinations"),
        }),
        h(
          "div",
          null,
          panel("Protocols", this.protocols.element),
          this.listenersPanel,
          panel("Journal", this.journal),
        ),
      ),
    );
  }

  rangeSelect() {
    const select = h(
      "select",
      { "aria-label": "Time range" },
      MINUTES.map((minutes) => h("option", { value: minutes }, `${minutes} minutes`)),
    );
    select.addEventListener("change", () => {
      this.minutes = Number(select.value);
      this.refresh();
    });
    return select;
  }

  /** Request the data that the stream does not contain: the history and the largest backlogs. */
  async load(request) {
    const [history, { items }] = await Promise.all([
      get("history", { minutes: this.minutes }, request),
      get("destinations", { sort: "ready", order: "desc", limit: MAX_ROWS }, request),
    ]);
    this.draw(history);
    this.largestBacklogs.update(items);
    if (this.backlogs.firstChild !== this.content) replaceContent(this.backlogs, this.content);
    this.largestBacklogs.element.hidden = items.length === 0;
    this.noDestinations.hidden = items.length > 0;
    if (!live.overview) setOverview(await get("overview", {}, request));
  }

  draw(history) {
    for (const item of Object.values(this.charts)) item.update(history, this.minutes);
  }

  update(overview) {
    const { totals } = overview;
    const up = duration(overview.uptime_ms);
    const suffix = overview.compiled ? ", compiled" : "";
    setText(
      this.about,
      `Version ${overview.version}${suffix}, up ${up}, ${bytes(overview.resident_memory_bytes)} of memory`,
    );
    this.readings.in.set(perSecond(totals.publish_rate), bytes(totals.published_bytes));
    this.readings.ready.set(compact(totals.ready), plural(totals.destinations, "destination"));
    this.readings.unacked.set(compact(totals.unacked), plural(totals.consumers, "consumer"));
    this.readings.out.set(perSecond(totals.deliver_rate), bytes(totals.delivered_bytes));
    this.level.update(totals.ready);
    this.showAlarms(overview.alarms ?? []);
    this.showWelcome(overview);
    const entries = Object.entries(overview.protocols ?? {});
    this.protocols.update(entries.map(([name, figures]) => ({ name, ...figures })));
    this.listeners.update(overview.listeners ?? []);
    this.showJournal(overview);
  }

  showAlarms(alarms) {
    const state = JSON.stringify(alarms);
    if (state === this.shownAlarms) return;
    this.shownAlarms = state;
    replaceContent(
      this.alarms,
      alarms.map(({ code, message }) =>
        h("p", { class: "alarm", role: "alert" }, badge(code, "bad"), message),
      ),
    );
  }

  /** Explain the first steps while there are no destinations. */
  showWelcome({ totals, listeners: open }) {
    const isEmpty = totals.destinations === 0;
    if (isEmpty === this.isWelcomeShown) return;
    this.isWelcomeShown = isEmpty;
    const receive = receiveCommand(open, "orders");
    replaceContent(
      this.welcome,
      isEmpty &&
        panel(
          null,
          emptyState(
            "No messages yet",
            h("p", null, "A queue is created when it is first used. In a terminal:"),
            command(sendCommand(open, "orders")),
            receive && command(receive),
            h(
              "p",
              null,
              "Or ",
              h("a", { href: "#/destinations" }, "create a destination"),
              " here.",
            ),
          ),
        ),
    );
  }

  showJournal({ journal, loop_lag_ms: lag, message_memory_bytes: bodies, broker_id: id }) {
    const pairs = [
      ["Broker ID", h("code", null, id)],
      ["Message memory", bytes(bodies)],
      ["Event loop lag (p50 / p99)", `${millis(lag?.p50)} / ${millis(lag?.p99)}`],
    ];
    const sync = journal.fdatasync_ms;
    if (journal.enabled) {
      pairs.push(
        ["Segments", `${count(journal.segments)}, ${bytes(journal.bytes)}`],
        ["Live records", count(journal.live_records)],
        ["fdatasync (p50 / p99)", `${millis(sync?.p50)} / ${millis(sync?.p99)}`],
      );
    } else pairs.push(["Journal", "none; messages are kept in memory only"]);
    if (this.journal.childElementCount) updateValueList(this.journal, pairs);
    else replaceContent(this.journal, valueList(pairs));
  }
}

function charts() {
  return {
    flow: new Chart({
      title: "Messages per second",
      series: [
        { key: "publish_rate", label: "publish rate", tone: "accent", area: true },
        { key: "deliver_rate", label: "deliver rate", tone: "accent-alt", area: true, down: true },
      ],
      format: rate,
      height: 224,
    }),
    depth: new Chart({
      title: "Backlog",
      series: [
        { key: "ready", label: "ready", tone: "accent", area: true },
        { key: "unacked", label: "unacked", tone: "accent-alt", dash: true },
      ],
      format: compact,
      least: 10,
    }),
    lag: new Chart({
      title: "Event loop lag",
      series: [{ key: "loop_lag_ms", label: "p99", tone: "accent" }],
      format: millis,
    }),
    sync: new Chart({
      title: "fdatasync",
      series: [{ key: "fdatasync_ms", label: "p99", tone: "accent-alt" }],
      format: millis,
    }),
  };
}

function largestBacklogs() {
  return new Table({
    caption: "Largest backlogs",
    key: (item) => `${item.kind}/${item.name}/${item.name_base64 ?? ""}`,
    columns: [
      {
        key: "name",
        label: "Name",
        head: true,
        wide: true,
        fingerprint: (item) => `${item.kind} ${item.name}`,
        show: (item) => [
          h("a", { class: "name", href: DestinationRef.of(item).href() }, item.name),
          item.kind === "topic" && badge("topic"),
        ],
      },
      {
        key: "ready",
        label: "Ready",
        number: true,
        fingerprint: (item) => String(item.ready),
        show: (item) => levelBar(item.ready),
      },
      { key: "publish_rate", label: "Publish rate", number: true, show: (item) => perSecond(item.publish_rate) },
      { key: "deliver_rate", label: "Deliver rate", number: true, show: (item) => perSecond(item.deliver_rate) },
      {
        key: "consumers",
        label: "Consumers",
        number: true,
        rank: 2,
        show: (item) => count(item.consumers),
      },
    ],
  });
}

function protocols() {
  return new Table({
    caption: "Protocols",
    key: ({ name }) => name,
    columns: [
      { key: "name", label: "Protocol", head: true, show: ({ name }) => name },
      {
        key: "connections",
        label: "Connections",
        number: true,
        show: (item) => count(item.connections),
      },
      { key: "publish_rate", label: "Publish rate", number: true, show: (item) => perSecond(item.publish_rate) },
      { key: "deliver_rate", label: "Deliver rate", number: true, show: (item) => perSecond(item.deliver_rate) },
    ],
  });
}

function listeners() {
  return new Table({
    caption: "Listeners",
    key: ({ url }) => url,
    columns: [
      {
        key: "url",
        label: "Address",
        head: true,
        fingerprint: ({ url }) => url,
        show: ({ url, tls }) => [h("span", { class: "name" }, url), tls && badge("TLS", "good")],
      },
      {
        key: "connections",
        label: "Connections",
        number: true,
        show: (item) => count(item.connections),
      },
    ],
  });
}
