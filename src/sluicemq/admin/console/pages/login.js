// Login form: name and password, or a token.

import { ApiError, post } from "../api.js";
import { h, replaceContent } from "../dom.js";
import { field, values } from "../fields.js";
import { command } from "../parts.js";
import { session } from "../session.js";
import { logo } from "../shell.js";

const PASSWORD = [
  { name: "user", label: "User", autocomplete: "username", required: true, maxlength: 64 },
  {
    name: "password",
    label: "Password",
    kind: "password",
    autocomplete: "current-password",
    required: true,
  },
];
const TOKEN = [{ name: "token", label: "Token", kind: "password", required: true }];

/** Replace the page by the login form; `onLogin` is called after the login. */
export function show(reason, onLogin) {
  document.title = "Log in · SluiceMQ";
  let specs = PASSWORD;
  const fields = h("div");
  const alert = h("p", { class: "error", role: "alert" });
  const submitButton = h("button", { type: "submit", class: "primary" }, "Log in");
  const switchButton = h("button", { type: "button", class: "quiet" });
  const form = h(
    "form",
    { class: "login" },
    fields,
    alert,
    h("div", { class: "buttons" }, switchButton, submitButton),
  );
  const showFields = () => {
    replaceContent(fields, specs.map(field));
    switchButton.textContent = specs === PASSWORD ? "Use a token" : "Use a password";
    fields.querySelector("input").focus();
  };
  switchButton.addEventListener("click", () => {
    specs = specs === PASSWORD ? TOKEN : PASSWORD;
    showFields();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submitButton.disabled = true;
    alert.textContent = "";
    try {
      session.set(await post("session", values(form, specs)));
      session.notifyTabs();
      await onLogin();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      alert.textContent = error.message;
      [...fields.querySelectorAll("input")].at(-1).select();
    } finally {
      submitButton.disabled = false;
    }
  });
  replaceContent(
    document.body,
    h(
      "main",
      { class: "alone" },
      h("div", { class: "brand" }, logo(), h("h1", null, "SluiceMQ")),
      form,
      h(
        "details",
        null,
        h("summary", null, "I have no user"),
        h("p", null, "An administrator of the broker can add one on its machine:"),
        command("sluicemq users add anna --superuser"),
      ),
    ),
  );
  showFields();
  if (reason?.code === "authentication-failed") alert.textContent = reason.message;
}
