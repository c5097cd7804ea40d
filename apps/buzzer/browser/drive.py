"""What people do, in a real browser: on a desktop, on a phone, with and without script, while servers fail."""

import json
import signal
import shutil
import tempfile
import threading
import urllib.request
from http.cookiejar import CookieJar

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from world import PATIENCE_S, ROOT, World

SCREENS = ROOT / "target/buzzer-screens"
DESKTOP, PHONE = (1280, 900, False), (360, 740, True)
MANY_POSTS = 10_000
POSTERS = 8

# As long as a name can be: it is in the head of all pages.
BOB = "bob_of_the_long_name"

# What nobody can use of a page: what is beyond the window, links and fields that a finger misses (but for links in sentences), and edges of what can be pressed that
# hardly differ from what is beside them.
UNUSABLE = """
const found = [], name = (one) => one.outerHTML.slice(0, 90);
const head = document.querySelector(".top nav");
if (head.scrollWidth > head.clientWidth) found.push("the head is wider than the window");
const width = document.documentElement.scrollWidth;
if (width > innerWidth) found.push(`the page is ${width} wide in a window of ${innerWidth}`);
const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
const luminance = (colour) => {
  const [r, g, b] = parts(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [less, more] = [luminance(one), luminance(other)].sort((one, other) => one - other);
  return (more + 0.05) / (less + 0.05);
};
const behind = (one) => {
  const colour = getComputedStyle(one).backgroundColor;
  return parts(colour)[3] === 0 ? behind(one.parentElement) : colour;
};
for (const one of document.querySelectorAll("a, button, input, textarea")) {
  const at = one.getBoundingClientRect(), style = getComputedStyle(one);
  if (!at.width || !at.height || style.clipPath !== "none") continue;
  if (at.left < 0 || at.right > innerWidth) found.push(`beyond the window: ${name(one)}`);
  const isInSentence = one.tagName === "A" && one.closest(".text, .empty, .other, h1");
  if (!isInSentence && (at.width < 24 || at.height < 24)) found.push(`${at.width} by ${at.height}: ${name(one)}`);
  if (one.matches("a:not(.strong), :disabled")) continue;
  const seen = contrast(style.borderTopColor, behind(one.parentElement));
  if (seen < 3) found.push(`contrast of ${seen}: ${name(one)}`);
}
return found;
"""


def password_of(name):
    return f"correct horse of {name}"


class Person:
    """One person with a browser."""

    def __init__(self, url, shape):
        options = webdriver.ChromeOptions()
        for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_page_load_timeout(PATIENCE_S)
        self.url, self.phone = url, shape[2]
        width, height, mobile = shape
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def cdp(self, command, **parameters):
        return self.driver.execute_cdp_cmd(command, parameters)

    def open(self, path):
        self.driver.get(self.url + path)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def wait(self, what, ask):
        # What is looked at may be of a page that is about to go.
        wait = WebDriverWait(self.driver, PATIENCE_S, ignored_exceptions=[StaleElementReferenceException])
        return wait.until(lambda _: ask(), message=what)

    def press(self, selector):
        """Presses something that leads to another page, and waits for that."""
        # The mark is gone with the page that it is on.
        self.driver.execute_script("window.isOld = true")
        self.one(selector).click()
        self.wait_for_page()

    def wait_for_page(self):
        script = "return !window.isOld && document.readyState === 'complete'"
        self.wait("another page", lambda: self.driver.execute_script(script))

    def type(self, selector, text):
        self.one(selector).send_keys(text)

    def texts(self):
        return [card.find_elements(By.CSS_SELECTOR, ":scope > .text")[0].text for card in self.all(".card")]

    def screen(self, name):
        """Takes a picture, light and dark, of a page that can be used."""
        shape = "phone" if self.phone else "desktop"
        for theme in ("dark", "light"):
            self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
            unusable = self.driver.execute_script(UNUSABLE)
            assert not unusable, f"{shape}-{name}-{theme}: {unusable}"
            self.driver.save_screenshot(str(SCREENS / f"{shape}-{name}-{theme}.png"))

    def keys(self, *keys):
        ActionChains(self.driver).send_keys(*keys).perform()

    def sign_up(self, name):
        self.open("/signup")
        self.type("#name", name)
        self.type("#password", password_of(name))
        self.press(".door button")
        assert f"@{name}" in self.one(".me").text
        self.skip_to_content()

    def skip_to_content(self):
        """By keys alone, past the head."""
        self.keys(Keys.TAB)
        focus = self.driver.switch_to.active_element
        assert focus.text == "Skip to content", focus.text
        self.screen("skip")
        self.keys(Keys.ENTER, Keys.TAB)
        assert self.driver.switch_to.active_element.get_attribute("id") == "text"

    def post(self, text):
        self.open("/")
        self.type("#text", text)
        self.press(".compose button")

    def follow(self, name):
        self.open(f"/u/{name}")
        self.press(".profile button.strong")
        assert self.one(".profile button").text == "Unfollow"

    def complaints(self):
        """What the browser complained of, but for pages that say with their status that something is not so."""
        logged = self.driver.get_log("browser")
        return [one["message"] for one in logged if "the server responded with a status" not in one["message"]]

    def quit(self):
        self.driver.quit()


def fill(url, name, count):
    """An account with many posts, made through the API."""
    def request(opener, path, body):
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/api/v1{path}", json.dumps(body).encode(), headers)
        with opener.open(asked, timeout=PATIENCE_S) as answer:
            assert answer.status == 201, answer.status

    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    request(opener, "/accounts", {"name": name, "password": password_of(name)})
    failed = []

    def post(first):
        try:
            for index in range(first, count, POSTERS):
                request(opener, "/posts", {"text": f"post {index} of many"})
        except Exception as error:  # Told by whoever waits for this thread.
            failed.append(error)

    threads = [threading.Thread(target=post, args=(first,)) for first in range(POSTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def people_meet(alice, bob):
    """They sign up, post, follow and answer; one at a desk, one with a phone."""
    alice.open("/")
    alice.screen("welcome")
    bob.open("/")
    bob.screen("welcome")
    bob.open("/signup")
    bob.screen("signup")
    alice.sign_up("alice")
    alice.screen("empty")
    bob.sign_up(BOB)
    markup = "<script>document.title = 'broken'</script> & <b>not bold</b>"
    alice.post(markup)
    assert alice.texts() == [markup] and "broken" not in alice.driver.title
    address = "https://example.org/" + "a" * 90
    second = f"A second post for @{BOB}, over\ntwo lines, and {address}."
    alice.post(second)
    shown = [(link.get_attribute("href"), link.get_attribute("rel")) for link in alice.all(".text a")]
    assert shown == [(f"{alice.url}/u/{BOB}", ""), (address, "nofollow noopener noreferrer ugc")], shown
    bob.open("/")
    bob.press(".empty a[href='/newest']")
    assert len(bob.texts()) == 2
    bob.screen("newest")
    bob.follow("alice")
    bob.screen("profile")
    bob.open("/")
    assert len(bob.texts()) == 2 and bob.texts()[1] == markup
    bob.press(".card .do a")
    bob.type("#text", "An answer from the bus: very much so!")
    bob.press(".compose button")
    assert bob.all(".answered")
    bob.screen("answer")
    bob.open("/")
    bob.screen("timeline")
    alice.press(".text a")
    assert alice.driver.current_url.endswith(BOB)
    alice.follow(BOB)
    alice.open("/")
    assert alice.texts()[0] == "An answer from the bus: very much so!"
    alice.screen("timeline")
    # From the answer to what it answers, which is shown with all that answers it.
    alice.press(".answered a")
    alice.type("#text", "So I see, " * 20 + "says alice.")
    alice.press(".compose button")
    answers = ["An answer from the bus: very much so!", "So I see, " * 20 + "says alice."]
    for person in (alice, bob):
        person.open("/u/alice")
        person.press(".card:nth-of-type(2) .when")
        assert person.texts() == [second, *answers] and not person.all(".answered"), person.texts()
        person.screen("post")
        person.open("/u/alice/followers")
        person.screen("followers")
        person.open("/api")
        person.screen("api")
        person.open("/settings")
        person.screen("settings")
        person.open("/u/nobody_is_here")
        person.screen("nobody")
    alice.open("/")
    alice.type("#text", "x" * 285)
    assert alice.one(".left").text == "-5 left" and not alice.one(".compose button").is_enabled()
    alice.screen("too-long")


def without_script(person):
    """All of it works without, but for comfort."""
    person.cdp("Emulation.setScriptExecutionDisabled", value=True)
    person.open("/")
    person.type("#text", "Without script")
    person.one(".compose button").click()
    person.wait("the post", lambda: "Without script" in person.texts())
    assert "characters" in person.one(".left").text
    person.screen("without-script")
    person.cdp("Emulation.setScriptExecutionDisabled", value=False)


def a_page_of_many(person):
    person.open("/u/many")
    assert len(person.texts()) == 20 and "100+" in person.one(".counts").text
    person.screen("many")
    seen = person.texts()
    for _ in range(5):
        person.press(".more a")
        assert len(person.texts()) == 20
        seen += person.texts()
    assert len(set(seen)) == len(seen)
    person.screen("many-older")


def servers_fail(world, person):
    """One is killed, which nobody notices; then half of them stand still, which is told."""
    world.kill(0)
    person.post("One server was killed")
    assert person.texts()[0] == "One server was killed"
    a_page_of_many(person)
    world.restart(0)
    person.open("/")
    typed = "Half of the servers stand still\n<i>and this stays</i>"
    person.type("#text", typed)
    world.signal((2, 3), signal.SIGSTOP)
    try:
        person.press(".compose button")
        assert "Try again" in person.one(".trouble").text
        assert person.one("#text").get_attribute("value") == typed
        person.screen("unavailable")
    finally:
        world.signal((2, 3), signal.SIGCONT)

    def again():
        if person.all(".trouble"):
            person.press(".compose button")
        return not person.all(".trouble")

    person.wait("the store", again)
    person.open("/")
    assert person.texts().count(typed) == 1


def change_password(person, name):
    person.open("/settings")
    person.type("#old-password", "not this one")
    person.type("#new-password", "another horse")
    person.press("form[action='/password'] button")
    assert "wrong" in person.one(".problem").text
    person.screen("password-wrong")
    person.type("#old-password", password_of(name))
    person.type("#new-password", "another horse")
    person.press("form[action='/password'] button")
    assert "was changed" in person.one(".note").text
    person.screen("password-changed")
    # And back, for what follows.
    person.type("#old-password", "another horse")
    person.type("#new-password", password_of(name))
    person.press("form[action='/password'] button")
    assert "was changed" in person.one(".note").text


def leave(person, name):
    person.open("/settings")
    person.type("#password", password_of(name))
    person.driver.execute_script("window.isOld = true")
    person.one(".danger").click()
    person.driver.switch_to.alert.accept()
    person.wait_for_page()
    assert "Goodbye" in person.one(".note").text
    person.screen("goodbye")
    person.open(f"/u/{name}")
    assert "no account" in person.one(".trouble").text


def main():
    shutil.rmtree(SCREENS, ignore_errors=True)
    SCREENS.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as dir:
        world, people = None, []
        try:
            world = World(dir)
            for shape in (DESKTOP, PHONE):
                people.append(Person(world.url, shape))
            alice, bob = people
            people_meet(alice, bob)
            without_script(bob)
            change_password(alice, "alice")
            fill(world.url, "many", MANY_POSTS)
            a_page_of_many(bob)
            servers_fail(world, alice)
            bob.open("/")
            bob.screen("later")
            leave(bob, BOB)
            for person in people:
                complaints = person.complaints()
                assert not complaints, complaints
        except BaseException:
            for process in world.processes if world else []:
                print(process.out, process.said()[-4000:], sep="\n")
            for index, person in enumerate(people):
                person.driver.save_screenshot(str(SCREENS / f"failed-{index}.png"))
            raise
        finally:
            for person in people:
                person.quit()
            if world:
                world.stop()
    print(f"all is well; {len(list(SCREENS.iterdir()))} pictures are in {SCREENS}")


if __name__ == "__main__":
    main()
