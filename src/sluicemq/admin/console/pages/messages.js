// Messages of a destination: all of them, or those that match a selector, page by page.

import { deleteMessages, redeliverMessages, redriveMessages, transferMessages } from "../actions.js";
import { get } from "../api.js";
import { preview } from "../body.js";
import { receiveCommand, sendCommand } from "../commands.js";
import { h, replaceContent, replaceControls, setText } from "../dom.js";
import { count, plural } from "../format.js";
import { field } from "../fields.js";
import { every, live } from "../live.js";
import { button, command, emptyState, loading, panel } from "../parts.js";
import { currentRoute, storeQuery } from "../router.js";
import { session } from "../session.js";
import { announce } from "../notifications.js";
import { messageTable } from "./message_table.js";

const SIZE = 50;
const REFRESH_MS = 4_000;

const STATES = [
  ["ready", "ready"],
  ["unacked", "unacked"],
  ["scheduled", "scheduled"],
];

export function show(destination, signal) {
  return new Messages(destination, signal).element;
}

class Messages {
  constructor(destination, signal) {
    this.destination = destination;
    this.signal = signal;
    const { query } = currentRoute();
    this.state = query.get("state") ?? "ready";
    this.selector = query.get("selector") ?? "";
    this.subscription = query.get("subscription") ?? "";
    this.offset = Math.max(0, Number.parseInt(query.get("offset") ?? "0", 10) || 0);
    /** Cursors of the pages before this one, if there is a selector. */
    this.cursors = [null];
    this.selected = new Set();
    this.items = [];
    /** True if the previews of some messages have not been loaded. */
    this.hasMissingPreviews = true;
    /** Previews of the listed bodies by message id; each is requested once. */
    this.previews = new Map();
    this.table = messageTable(this);
    this.bar = h("div", { class: "actions" });
    this.foot = h("div", { class: "pager" });
    this.emptyState = h("div", { hidden: true });
    this.content = h("div", null, this.table.element, this.foot, this.emptyState);
    this.rows = h("div", null, this.content);
    this.refresh = loading(this.rows, (request) => this.load(request), signal);
    this.element = panel(null, [this.filters(), this.bar, this.rows]);
    this.tools();
    every(REFRESH_MS, () => this.refresh(), signal);
  }

  filters() {
    const form = h(
      "form",
      { class: "filters" },
      field({
        name: "state",
        key: "",
        label: "State",
        kind: "choice",
        options: STATES,
        value: this.state,
      }),
      this.destination.kind === "topic" && (this.chooser = h("div", { class: "field" })),
      h(
        "div",
        { class: "grow field" },
        field({
          name: "selector",
          key: "",
          label: "Selector",
          value: this.selector,
          placeholder: "color = 'red' AND JMSPriority > 4",
        }),
      ),
      h("button", { type: "submit" }, "Apply"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.restart(form);
    });
    form.elements.state.addEventListener("change", () => this.restart(form));
    if (this.chooser) this.showSubscriptions(form);
    return form;
  }

  /** Show the subscriptions of a topic, by which its messages are listed. */
  async showSubscriptions(form) {
    const query = { ...this.destination.filterQuery(), limit: 500 };
    const { items } = await get("subscriptions", query, this.signal).catch(() => ({ items: [] }));
    const options = items.map(({ name, display_name: label, client_id: client }) => [
      name,
      client ? `${label}, client ${client}` : label,
    ]);
    if (!options.some(([name]) => name === this.subscription)) this.subscription = "";
    // a topic without subscriptions may retain messages for the first one
    if (!options.length) options.push(["", "no subscriptions"]);
    else if (!this.subscription) [[this.subscription]] = options;
    replaceContent(
      this.chooser,
      field({
        name: "subscription",
        key: "",
        label: "Subscription",
        kind: "choice",
        options,
        value: this.subscription,
      }),
    );
    form.elements.subscription.addEventListener("change", () => this.restart(form));
    this.refresh();
  }

  restart(form) {
    this.state = form.elements.state.value;
    this.selector = form.elements.selector.value.trim();
    this.subscription = form.elements.subscription?.value ?? "";
    this.offset = 0;
    this.cursors = [null];
    this.selected.clear();
    this.storeState();
    this.refresh().then(() => announce(this.foot.firstChild?.textContent || "No messages"));
  }

  storeState() {
    storeQuery({
      state: this.state === "ready" ? "" : this.state,
      selector: this.selector,
      subscription: this.subscription,
      offset: this.offset || "",
    });
  }

  async load(request) {
    const cursor = this.selector ? this.cursors.at(-1) : null;
    const answer = await get(
      this.destination.path("/messages"),
      this.destination.query({
        state: this.state,
        selector: this.selector,
        subscription: this.subscription,
        limit: SIZE,
        body: this.hasMissingPreviews ? "true" : "",
        ...(this.selector ? cursor && { cursor } : { offset: this.offset || "" }),
      }),
      request,
    );
    const lastPage = Math.floor(Math.max(0, answer.total - 1) / SIZE) * SIZE;
    if (!answer.items.length && lastPage < this.offset) {
      // the messages of the last page have been removed
      this.offset = lastPage;
      this.storeState();
      await this.load(request);
      return;
    }
    for (const { id, body } of answer.items) if (body) this.previews.set(id, preview(body));
    const hasMissingPreviews = answer.items.some(({ id }) => !this.previews.has(id));
    if (hasMissingPreviews && !this.hasMissingPreviews) {
      this.hasMissingPreviews = true;
      await this.load(request);
      return;
    }
    this.hasMissingPreviews = false;
    // only now, as the buttons of the displayed page refer to it
    this.answer = answer;
    this.items = answer.items;
    const listed = new Set(answer.items.map(({ id }) => id));
    for (const kept of [this.selected, this.previews]) {
      for (const id of kept.keys()) if (!listed.has(id)) kept.delete(id);
    }
    this.table.update(answer.items);
    this.table.element.hidden = answer.items.length === 0;
    this.showEmptyState(answer);
    this.pages(answer);
    this.tools();
    if (this.rows.firstChild !== this.content) replaceContent(this.rows, this.content);
  }

  /** Explain an empty list. The elements stay while it is empty, so that they keep the focus. */
  showEmptyState({ items, next_cursor: next }) {
    const state = items.length ? "" : JSON.stringify([this.state, this.selector, next, Boolean(live.overview)]);
    if (state === this.emptyReason) return;
    this.emptyReason = state;
    replaceContent(this.emptyState, state && this.emptyContent());
    this.emptyState.hidden = !state;
  }

  pages({ items, total, next_cursor: next }) {
    const from = this.selector
      ? ""
      : `${count(this.offset + 1)} to ${count(this.offset + items.length)} of ${count(total)}`;
    const summary = this.selector ? `${plural(items.length, "message")} found on this page` : from;
    const hasPrevious = this.selector ? this.cursors.length > 1 : this.offset > 0;
    const hasNext = this.selector ? Boolean(next) : this.offset + items.length < total;
    const state = JSON.stringify([summary, hasPrevious, hasNext, next]);
    if (state === this.pagerState) return;
    this.pagerState = state;
    const focused = document.activeElement?.textContent;
    replaceContent(
      this.foot,
      h("span", { class: "pager-text" }, items.length || this.selector ? summary : ""),
      !this.selector && total > SIZE && this.positionForm(total),
      (hasPrevious || hasNext) && [
        pageButton("Previous", hasPrevious, () => this.openPage(-1)),
        pageButton("Next", hasNext, () => this.openPage(1)),
      ],
    );
    const sameButton = [...this.foot.querySelectorAll("button")].find(
      (button) => button.textContent === focused,
    );
    if (sameButton && document.activeElement === document.body) sameButton.focus();
  }

  positionForm(total) {
    const input = h("input", {
      type: "number",
      min: 1,
      max: total,
      "aria-label": "Position to go to",
      placeholder: "position",
    });
    const form = h("form", { class: "pair" }, input, h("button", { type: "submit" }, "Go to"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!input.value) return;
      this.offset = Math.min(total, Math.max(1, Number(input.value))) - 1;
      this.loadPage();
    });
    return form;
  }

  openPage(step) {
    if (!this.selector) this.offset = Math.max(0, this.offset + step * SIZE);
    else if (step < 0) this.cursors.length = Math.max(1, this.cursors.length - 1);
    // with the second click of a double click, the cursor is there
    else if (this.cursors.at(-1) !== this.answer.next_cursor) this.cursors.push(this.answer.next_cursor);
    this.loadPage();
  }

  async loadPage() {
    this.selected.clear();
    this.storeState();
    await this.refresh();
    announce(this.foot.firstChild?.textContent ?? "");
  }

  /** Return the messages that the buttons apply to: the selected ones, or all of the list. */
  scope() {
    const more = { ...(this.subscription && { subscription: this.subscription }) };
    if (this.selected.size)
      return [plural(this.selected.size, "message"), { ids: [...this.selected], ...more }];
    const state = this.state === "unacked" ? {} : { state: this.state };
    if (this.selector)
      return ["all matching messages", { selector: this.selector, ...state, ...more }];
    return ["all messages", { all: true, ...state, ...more }];
  }

  tools() {
    const amount = this.selected.size ? `${count(this.selected.size)}` : "all";
    const emptyReason = !this.items.length && "the list is empty";
    const unackedReason = this.state === "unacked" && !this.selected.size && "select messages first";
    const consumeReason = session.denialReason("consume", this.destination.name);
    const browseReason = session.denialReason("browse", this.destination.name);
    const manageReason = session.denialReason("manage", this.destination.name);
    const needsManage = this.state === "unacked" && !this.subscription;
    const endReason = consumeReason || (needsManage && manageReason);
    const deleteReason = this.selected.size || this.selector ? endReason : manageReason;
    const hasDeadLetters = this.items.some((item) => item.dead_letter);
    const state = JSON.stringify([
      this.state,
      amount,
      emptyReason,
      unackedReason,
      deleteReason,
      hasDeadLetters,
    ]);
    if (state === this.toolState) return;
    this.toolState = state;
    const runAction = (action) => async () => {
      const [messages, selection] = this.scope();
      if (await action(this.destination, messages, selection)) {
        this.selected.clear();
        await this.refresh();
      }
    };
    const tool = (label, action, disabledReason, tone = "") =>
      button(`${label} ${amount}…`, runAction(action), { disabledReason: disabledReason || emptyReason || unackedReason, tone });
    replaceControls(this.bar, [
      hasDeadLetters && tool("Redrive", redriveMessages, consumeReason),
      tool("Move", (destination, ...rest) => transferMessages(destination, "move", ...rest), consumeReason),
      tool("Copy", (destination, ...rest) => transferMessages(destination, "copy", ...rest), browseReason),
      this.state !== "ready" && tool("Redeliver", redeliverMessages, endReason),
      tool("Delete", deleteMessages, deleteReason, "danger"),
    ]);
  }

  emptyContent() {
    if (this.selector) {
      return emptyState(
        this.answer.next_cursor ? "No matches so far" : "No matching messages",
        h(
          "p",
          null,
          this.answer.next_cursor
            ? "The broker examines a limited number of messages per request; select Next to continue."
            : "A selector is a condition on headers and properties, as in JMS: color = 'red' AND size > 10.",
        ),
      );
    }
    if (this.state !== "ready") return emptyState(`No ${STATES.find(([state]) => state === this.state)?.[1] ?? ""} messages`);
    const listeners = live.overview?.listeners;
    const receive = receiveCommand(listeners, this.destination.name);
    if (this.destination.kind === "topic") {
      return emptyState(
        "No ready messages",
        h(
          "p",
          null,
          "Each subscription keeps a published message until it is acknowledged; without subscriptions the message is discarded.",
        ),
      );
    }
    return emptyState(
      "No ready messages",
      h("p", null, "Publish a message on the Publish tab or in a terminal:"),
      command(sendCommand(listeners, this.destination.name)),
      receive && command(receive),
    );
  }
}

function pageButton(label, usable, onclick) {
  return h("button", { type: "button", disabled: !usable, onclick }, label);
}
