// Fields of forms: a label, the key in the API, a control, a hint, and the value for the API.
//
// kinds: text, password, number, area, check, choice (with `options` of [value, label]), ms and
// bytes (quantities with a unit, see quantities.js).

import { h, uniqueId } from "./dom.js";
import { formatQuantity, hasUnit, parseQuantity, quantityProblem } from "./quantities.js";

const EXAMPLES = { ms: "5 min", bytes: "10 MiB" };

function control(spec, id, hint) {
  const shared = {
    id,
    name: spec.name,
    required: spec.required,
    disabled: spec.disabled,
    autocomplete: spec.autocomplete ?? "off",
    "aria-describedby": hint,
  };
  if (spec.kind === "choice") {
    return h(
      "select",
      shared,
      spec.options.map(([value, label]) =>
        h("option", { value, selected: value === String(spec.value ?? "") }, label),
      ),
    );
  }
  if (spec.kind === "area") {
    const area = h("textarea", { ...shared, rows: spec.rows ?? 6, spellcheck: "false" });
    area.value = spec.value ?? "";
    return area;
  }
  if (spec.kind === "check") {
    const box = h("input", { ...shared, type: "checkbox" });
    box.checked = Boolean(spec.value);
    return box;
  }
  const numeric = spec.kind === "number";
  const input = h("input", {
    ...shared,
    type: numeric ? "number" : spec.kind === "password" ? "password" : "text",
    min: spec.min,
    max: spec.max,
    step: numeric ? (spec.step ?? 1) : null,
    placeholder: spec.placeholder ?? (hasUnit(spec.kind) ? EXAMPLES[spec.kind] : null),
    maxlength: spec.maxlength,
    list: spec.list,
    spellcheck: "false",
    autocapitalize: "off",
  });
  if (hasUnit(spec.kind)) {
    input.value = formatQuantity(spec.kind, spec.value);
    input.addEventListener("input", () =>
      input.setCustomValidity(quantityProblem(spec.kind, input.value)),
    );
  } else input.value = spec.value ?? "";
  return input;
}

/**
 * Return a field; `spec` has name, label, kind and more, see above. The key beside the label is `key`, or
 * the name if there is none; an empty key is omitted.
 */
export function field(spec) {
  const id = uniqueId("field");
  const hint = spec.hint ? uniqueId("hint") : null;
  const input = control(spec, id, hint);
  const label = h("label", { for: id }, spec.label);
  const key = spec.key ?? spec.name;
  const labels = [label, key && h("code", { class: "field-key" }, key)];
  const hintElement = hint && h("p", { class: "hint", id: hint }, spec.hint);
  if (spec.kind === "check") {
    return h(
      "div",
      { class: "field field-check" },
      h("div", { class: "pair" }, input, h("span", null, label, " ", labels[1])),
      hintElement,
    );
  }
  return h(
    "div",
    { class: `field field-${spec.kind ?? "text"}` },
    h("div", { class: "field-label" }, labels),
    input,
    hintElement,
  );
}

function typed(spec, control) {
  if (spec.kind === "check") return control.checked;
  if (hasUnit(spec.kind)) return parseQuantity(spec.kind, control.value);
  if (spec.kind === "number") {
    return control.value === "" ? null : Number(control.value);
  }
  return control.value;
}

/** Return the values of a form's fields by name; empty numbers are null. */
export function values(form, specs) {
  return Object.fromEntries(
    specs
      .filter((spec) => form.elements[spec.name])
      .map((spec) => [spec.name, typed(spec, form.elements[spec.name])]),
  );
}
