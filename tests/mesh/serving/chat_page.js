"use strict";
// Runs mesh/serving/web/chat.js in Node, with as much of a page as it touches, and prints what the log shows as JSON.
// usage: node chat_page.js URL ACTION...   An action is "say TEXT" (and wait), "begin TEXT" or "stop" (and wait).

const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const vm = require("node:vm");

const [url, ...actions] = process.argv.slice(2);

function element() {
  const own = { value: "", hidden: false, textContent: "", className: "", boxes: [], listeners: {} };
  own.addEventListener = (name, listener) => { own.listeners[name] = listener; };
  own.append = (box) => own.boxes.push(box);
  own.replaceChildren = (...boxes) => { own.boxes = boxes; };
  own.classList = { add: (name) => { own.className += ` ${name}`; } };
  own.scrollIntoView = own.focus = own.remove = () => {};
  return own;
}

const page = {};
const send = () => page.form.listeners.submit({ preventDefault() {} });
global.document = { getElementById: (id) => (page[id] ??= element()), createElement: element };
global.Option = function Option(name) { this.name = name; };
const fetched = global.fetch;
global.fetch = (path, options) => fetched(url + path, options);
vm.runInThisContext(readFileSync(join(__dirname, "../../../mesh/serving/web/chat.js"), "utf-8"));

const turn = () => new Promise((done) => setTimeout(done, 5));

async function ended() {
  while (page.send.textContent !== "Send") await turn();
}

async function main() {
  for (const action of actions) {
    const [what, text] = action.split(" ");
    if (what !== "stop") page.text.value = text;
    send();
    if (what !== "begin") await ended();
  }
  console.log(JSON.stringify(page.log.boxes.map((box) => [box.className, box.textContent])));
  process.exit(0);
}

main();
