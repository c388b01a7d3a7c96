"""Opens every page of the book in Chromium, over HTTP, follows every link between the pages and to the sources, and
searches.
Prints each message on the browser's console, each request that fails and each anchor that is missing; exits with 1 then.
"""

import functools
import html.parser
import http.server
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from urllib.parse import unquote, urldefrag, urljoin

TIMEOUT = 60
FEWEST_PAGES = 20


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the source tree with the book in it, and keeps what it could not serve."""

    failed = set()

    def log_error(self, _format, code, *_):
        Server.failed.add(f"{self.path}: {code}, from {self.headers.get('Referer', 'a link')}")

    def log_message(self, *_):
        pass


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page after its scripts have run, and the messages on its console."""

    def __init__(self, url, profile):
        super().__init__()
        self.links, self.anchors = set(), set()
        command = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--enable-logging=stderr", "--dump-dom", url]
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        self.messages = [line for line in run.stderr.splitlines() if ":CONSOLE:" in line]
        self.feed(run.stdout)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.add(attributes["href"])


def request(url):
    """Requests `url`; the server keeps the failure."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=TIMEOUT).close()
    except urllib.error.HTTPError:
        pass


def main(top, profile):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=top))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    site = f"http://127.0.0.1:{server.server_port}/"
    urls = [f"{site}book/{page.name}" for page in sorted(pathlib.Path(top, "book").glob("*.html"))]
    # The search loads its index only when a page is searched.
    urls.append(f"{site}book/index.html?search=backend")
    pages = {url: Page(url, profile) for url in urls}
    problems = [message for page in pages.values() for message in page.messages]
    links = {(url, urljoin(url, link)) for url, page in pages.items() for link in page.links}
    links = {(url, *urldefrag(link)) for url, link in links if link.startswith(site)}
    for target in {target for _, target, _ in links}:
        request(target)
    for url, target, anchor in sorted(links):
        if anchor and target in pages and unquote(anchor) not in pages[target].anchors:
            problems.append(f"{target} has no anchor {anchor}, from {url}")
    problems += sorted(Server.failed)
    # A link of a search result has this parameter.
    if not any("highlight=backend" in link for link in pages[urls[-1]].links):
        problems.append(f"{urls[-1]} shows no result of the search")
    summary = f"book: {len(urls)} pages opened, {len(links)} links followed, {len(problems)} problems"
    print("\n".join([*problems, summary]))
    return 1 if problems or len(urls) < FEWEST_PAGES else 0


sys.exit(main(*sys.argv[1:]))
