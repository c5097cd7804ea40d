// Comfort only: everything works without it. Counts characters, shows how long ago things were, asks before something is deleted, keeps a form from being sent
// twice, and gives a page that was open for long a new key for its post.
"use strict";

const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
const KEY_FRESH = 4 * MINUTE;

function ago(past) {
  if (past < MINUTE) return "just now";
  if (past < HOUR) return Math.floor(past / MINUTE) + " min ago";
  if (past < DAY) return Math.floor(past / HOUR) + " h ago";
  return null;
}

function showTimes() {
  for (const time of document.querySelectorAll("time")) {
    const text = ago(Date.now() - Date.parse(time.dateTime));
    if (!time.title) time.title = time.textContent;
    time.textContent = text ?? time.title;
  }
}

function count(area) {
  const form = area.form, left = form.querySelector(".left"), most = Number(area.dataset.most);
  const show = () => {
    const remaining = most - [...area.value.trim()].length;
    left.textContent = remaining + " left";
    left.classList.toggle("over", remaining < 0);
    form.querySelector("button").disabled = remaining < 0;
  };
  area.addEventListener("input", show);
  show();
}

// A post is dated by its key. As long as nothing was sent with it, the key of a page that was open for long can be replaced.
function refreshKey(form) {
  const since = Date.now(), key = form.elements.key;
  let asked = since, sent = false;
  form.addEventListener("submit", () => { sent = true; });
  form.elements.text.addEventListener("input", async () => {
    if (sent || Date.now() - asked < KEY_FRESH) return;
    asked = Date.now();
    const answers = form.elements.answers.value;
    const response = await fetch("/key?answers=" + encodeURIComponent(answers)).catch(() => null);
    if (response?.ok && !sent) key.value = (await response.text()).trim();
  });
}

for (const area of document.querySelectorAll("textarea[data-most]")) count(area);
for (const form of document.querySelectorAll("form[data-compose]")) refreshKey(form);
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sure && !confirm(form.dataset.sure)) { event.preventDefault(); return; }
    const button = form.querySelector("button");
    if (button) button.disabled = true;
  });
}
// A page that comes back from the browser's memory can be used again.
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const button of document.querySelectorAll("button")) button.disabled = false;
});
showTimes();
setInterval(showTimes, 30 * SECOND);
