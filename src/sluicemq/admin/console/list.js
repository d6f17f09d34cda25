// A list of the API as a table. The broker filters, sorts and pages it; it is requested again every
// few seconds. Filters, order and page are kept in the address of the page.

import { get } from "./api.js";
import { h, replaceContent } from "./dom.js";
import { loading } from "./parts.js";
import { every } from "./live.js";
import { currentRoute, storeQuery } from "./router.js";
import { Pager, Table } from "./table.js";
import { announce } from "./notifications.js";

/** ms after the last key in a filter until the list is requested. */
const PAUSE = 200;
const SIZE = 50;

export class List {
  /**
   * {path, fixed: {…}, filters: [control], sort, order, size, interval, table: {…}, none(filtered), signal,
   *  inUrl: false}
   *
   * `path` in the API, `fixed` parameters that the user does not choose; `filters` as made by the
   * functions below; `none` returns the content of an empty list; with `inUrl: false` nothing is kept in
   * the address of the page, which belongs to another list.
   */
  constructor({
    path,
    fixed = {},
    filters = [],
    sort = "",
    order = "asc",
    size = SIZE,
    interval = 3_000,
    ...rest
  }) {
    Object.assign(this, { path, fixed, filters, size, interval, ...rest });
    this.usual = { sort, order };
    const query = rest.inUrl === false ? new URLSearchParams() : currentRoute().query;
    this.page = Math.max(1, Number.parseInt(query.get("page") ?? "1", 10) || 1);
    this.sort = query.get("sort") ?? sort;
    this.order = query.get("order") ?? order;
    this.pager = new Pager(this.table.caption, (page) => this.turn(page));
    this.table = new Table({ ...this.table, onSort: (column) => this.sortBy(column) });
    this.emptyState = h("div", { hidden: true });
    this.content = h("div", null, this.table.element, this.pager.element, this.emptyState);
    this.rows = h("div", null, this.content);
    for (const filter of filters) filter.bind(query.get(filter.name) ?? "", () => this.filtered());
    this.element = h(
      "div",
      { class: "list" },
      filters.length > 0 &&
        h(
          "div",
          { class: "filters" },
          filters.map((one) => one.element),
        ),
      this.rows,
    );
    this.table.element.hidden = this.pager.element.hidden = true;
    this.table.sorted(this.sort, this.order);
    this.look = loading(this.rows, () => this.ask(), this.signal);
    this.ended = every(this.interval, () => this.look(), this.signal);
  }

  get chosen() {
    return Object.fromEntries(this.filters.map((filter) => [filter.name, filter.value]));
  }

  async ask() {
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    const query = {
      ...this.fixed,
      ...this.chosen,
      offset: (this.page - 1) * this.size,
      limit: this.size,
      ...(this.sort && { sort: this.sort, order: this.order }),
    };
    const answer = await get(this.path, query, AbortSignal.any([request.signal, this.signal]));
    this.show(answer);
  }

  show(answer) {
    const { items, total } = answer;
    this.total = total;
    if (!items.length && total > 0 && this.page > 1) {
      // the items of the last page have been removed
      this.turn(Math.ceil(total / this.size));
      return;
    }
    this.table.update(items);
    this.pager.update({ page: this.page, size: this.size, total });
    this.table.element.hidden = total === 0;
    const filtered = Object.values(this.chosen).some(Boolean);
    const state = total > 0 ? "" : `none ${filtered}`;
    if (state !== this.emptied) {
      this.emptied = state;
      replaceContent(this.emptyState, state && this.none(filtered));
      this.emptyState.hidden = !state;
    }
    if (this.rows.firstChild !== this.content) replaceContent(this.rows, this.content);
    this.onUpdate?.(answer);
  }

  keep() {
    if (this.inUrl === false) return;
    const usual = this.sort === this.usual.sort && this.order === this.usual.order;
    storeQuery({
      ...this.chosen,
      page: this.page > 1 ? this.page : "",
      sort: usual ? "" : this.sort,
      order: usual ? "" : this.order,
    });
  }

  async filtered() {
    this.page = 1;
    this.keep();
    await this.look();
    announce(this.total === 1 ? "1 found" : `${this.total} found`);
  }

  async turn(page) {
    this.page = page;
    this.keep();
    await this.look();
    announce(`Page ${page}`);
  }

  async sortBy({ key, label, first = "asc" }) {
    if (this.sort === key) this.order = this.order === "asc" ? "desc" : "asc";
    else [this.sort, this.order] = [key, first];
    this.page = 1;
    this.table.sorted(this.sort, this.order);
    this.keep();
    await this.look();
    announce(`Sorted by ${label}, ${this.order === "asc" ? "ascending" : "descending"}`);
  }
}

class Filter {
  constructor(name, label, control, grow) {
    this.name = name;
    this.control = control;
    control.id = `filter-${name}`;
    this.element = h(
      "div",
      { class: `field ${grow ? "grow" : ""}` },
      h("label", { for: control.id }, label),
      control,
    );
  }

  get value() {
    return this.control.value.trim();
  }

  bind(value, changed) {
    this.control.value = value;
    let timer = 0;
    this.control.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(changed, this.control.tagName === "SELECT" ? 0 : PAUSE);
    });
  }
}

/** A filter by text. */
export function textFilter(name, label, placeholder = "") {
  const control = h("input", {
    type: "search",
    placeholder,
    autocomplete: "off",
    spellcheck: "false",
  });
  return new Filter(name, label, control, true);
}

/** A filter by one of some values; `options` are [value, label]. */
export function choiceFilter(name, label, options) {
  const control = h(
    "select",
    null,
    options.map(([value, text]) => h("option", { value }, text)),
  );
  return new Filter(name, label, control, false);
}
