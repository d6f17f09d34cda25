// One queue or topic: its statistics, its operations, and tabs for messages, settings and others.

import { LONG_TIMEOUT_MS, get, post, remove } from "../api.js";
import { openForm } from "../dialogs.js";
import { h, replaceContent } from "../dom.js";
import { bytes, compact, count, plural, perSecond, duration } from "../format.js";
import { every } from "../live.js";
import { DestinationRef } from "../destination_ref.js";
import { attempt, button, errorElement, head, loading, reading } from "../parts.js";
import { go } from "../router.js";
import { session } from "../session.js";
import { notify } from "../notifications.js";
import { tags } from "./destinations.js";

const REFRESH_MS = 2_000;

const TABS = [
  ["messages", "Messages", () => import("./messages.js")],
  ["publish", "Publish", () => import("./publish.js")],
  ["consumers", "Consumers", () => import("./consumers.js")],
  ["subscriptions", "Subscriptions", () => import("./subscriptions.js")],
  ["charts", "Charts", () => import("./destination_charts.js")],
  ["settings", "Settings", () => import("./destination_settings.js")],
];

function destinationOf({ steps: [kind, name = ""], query }) {
  return DestinationRef.read(kind, name, query);
}

export function title({ steps, query }) {
  const { name } = destinationOf({ steps, query });
  const [, , tab = "messages", id] = steps;
  return id ? `Message ${id} in ${name}` : `${name}: ${tab}`;
}

export function show(route) {
  const destination = destinationOf(route);
  const [, , tab = "messages", id] = route.steps;
  if (tab === "messages" && id) {
    const element = h("div", { class: "page" });
    import("./message.js").then((page) => page.fillPage(element, destination, id, route.signal));
    return element;
  }
  return new Destination(destination, tab, route).element;
}

class Destination {
  constructor(destination, tab, route) {
    this.destination = destination;
    this.route = route;
    this.item = null;
    this.tags = h("span", { class: "tags" });
    this.actions = h("div", { class: "actions" });
    this.readings = {
      ready: reading("Ready"),
      unacked: reading("Unacked"),
      in: reading("Publish rate", "accent"),
      out: reading("Deliver rate", "accent-alt"),
      consumers: reading("Consumers"),
      dead: reading("Dead-lettered"),
    };
    this.content = h(
      "div",
      { class: "readings across" },
      Object.values(this.readings).map((entry) => entry.element),
    );
    this.figures = h("div", null, this.content);
    this.tab = h("div", { class: "tab" });
    const top = head(h("span", { class: "name" }, destination.name), { aside: this.tags });
    top.append(this.actions);
    this.element = h("div", { class: "page" }, top, this.figures, this.tabs(tab), this.tab);
    this.refresh = loading(this.figures, () => this.load(), route.signal);
    every(REFRESH_MS, () => this.refresh(), route.signal);
    this.open(tab);
  }

  tabs(current) {
    return h(
      "nav",
      { class: "tabs", "aria-label": "Views of the destination" },
      TABS.filter(([step]) => step !== "subscriptions" || this.destination.kind === "topic").map(
        ([step, label]) =>
          h(
            "a",
            { href: this.destination.href(`/${step}`), "aria-current": step === current ? "page" : null },
            label,
          ),
      ),
    );
  }

  async open(tab) {
    const [, , load] = TABS.find(([step]) => step === tab) ?? TABS[0];
    try {
      const page = await load();
      if (!this.route.signal.aborted) replaceContent(this.tab, page.show(this.destination, this.route.signal, this));
    } catch (error) {
      replaceContent(this.tab, errorElement(error));
    }
  }

  async load() {
    this.update(await get(this.destination.path(), this.destination.query(), this.route.signal));
    if (this.figures.firstChild !== this.content) replaceContent(this.figures, this.content);
  }

  update(item) {
    const { ready, unacked, consumers } = this.readings;
    const notes = [
      bytes(item.bytes),
      item.oldest_ms && `oldest ${duration(item.oldest_ms)}`,
      item.scheduled && `${compact(item.scheduled)} scheduled`,
    ];
    ready.set(compact(item.ready), notes.filter(Boolean).join(", "));
    unacked.set(compact(item.unacked));
    this.readings.in.set(perSecond(item.publish_rate), `${compact(item.published)} in total`);
    this.readings.out.set(perSecond(item.deliver_rate), `${compact(item.delivered)} in total`);
    consumers.set(
      count(item.consumers),
      item.kind === "topic" ? plural(item.subscriptions, "subscription") : "",
    );
    this.readings.dead.set(
      compact(item.dead_lettered),
      item.expired ? `${compact(item.expired)} expired` : "",
    );
    if (!this.item || this.item.paused !== item.paused) {
      replaceContent(this.tags, tags({ ...item, temporary: item.temporary }));
      replaceContent(this.actions, this.buttons(item));
    }
    this.item = item;
  }

  buttons(item) {
    const manageReason = session.denialReason("manage", item.name);
    const deleteReason = session.denialReason("delete", item.name);
    return [
      item.paused
        ? button("Resume", () => this.pause(false), { disabledReason: manageReason })
        : button("Pause", () => this.pause(true), { disabledReason: manageReason }),
      button("Purge…", () => this.purge(), { disabledReason: manageReason }),
      button("Delete…", () => this.deleteDestination(), { disabledReason: deleteReason, tone: "danger" }),
    ];
  }

  async pause(paused) {
    const message = paused
      ? `Delivery of ${this.destination} paused; publishing still works`
      : `Delivery of ${this.destination} resumed`;
    await attempt(() => post(this.destination.full(paused ? "/pause" : "/resume")), message);
    await this.refresh();
    this.actions.querySelector("button")?.focus();
  }

  async purge() {
    const { ready, unacked, subscriptions } = this.item;
    const result = await openForm({
      title: `Purge ${this.destination}?`,
      text: [
        ready
          ? `This permanently deletes ${readyText(this.item)}.`
          : "No messages are ready now; messages published before you confirm will be deleted permanently.",
        unacked > 0 &&
          `${plural(unacked, "unacked message")} will be kept.`,
      ].filter(Boolean),
      fields: unacked > 0 ? [{ name: "unacked", label: "Purge unacked messages too", kind: "check" }] : [],
      action: ready && subscriptions < 2 ? `Purge ${plural(ready, "message")}` : "Purge",
      tone: "danger",
      submit: ({ unacked: withUnacked = false }) =>
        post(this.destination.full("/purge"), { unacked: withUnacked }, { timeout: LONG_TIMEOUT_MS }),
    });
    if (!result) return;
    notify(`${plural(result.purged, "message")} purged`);
    this.refresh();
  }

  async deleteDestination() {
    const { ready, unacked, consumers, subscriptions } = this.item;
    const losses = [
      subscriptions > 0 && plural(subscriptions, "subscription"),
      ready > 0 && readyText(this.item),
      unacked > 0 && plural(unacked, "unacked message"),
      consumers > 0 && plural(consumers, "consumer"),
    ].filter(Boolean);
    const done = await openForm({
      title: `Delete ${this.destination}?`,
      text: [
        losses.length
          ? `This permanently removes ${losses.join(", ")}.`
          : "It has no messages and no consumers.",
        "Its settings are deleted. If automatic creation is allowed, it is created again with default settings when it is next used.",
      ],
      action: "Delete",
      tone: "danger",
      submit: () => remove(this.destination.path(), this.destination.query({ force: consumers ? "true" : "" })),
    });
    if (!done) return;
    notify(`${this.destination} deleted`);
    go("#/destinations");
  }
}

/** Return the number of ready messages as text. That of a topic is the number of its longest subscription. */
function readyText({ ready, scheduled, subscriptions, bytes: size }) {
  if (subscriptions > 1) return `up to ${plural(ready, "ready message")} of each subscription`;
  const including = scheduled ? `, including ${count(scheduled)} scheduled` : "";
  return `${plural(ready, "ready message")} (${bytes(size)})${including}`;
}
