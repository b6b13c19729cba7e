// A headless Chromium that t/lib/Browser.pm steers: a line of JSON for each
// thing to do, [name, argument...], and one for what came of it,
// {"value": ...} or {"error": "..."}.
//
// What should never be on a page's console is kept, and told when asked for.

const fs = require('fs');
const os = require('os');
const path = require('path');
const readline = require('readline');
const puppeteer = require('puppeteer-core');

const PATIENCE = 60000;     // milliseconds for anything that must happen

const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'ratelimit-browser-'));
const pages = [];

let browser;


const verbs = {

    async open(url, { width = 1280, height = 900, scale = 1, dark = false })
    {
        const page = await browser.newPage();

        page.setDefaultTimeout(PATIENCE);
        page.problems = [];
        watch(page);

        await page.emulateMediaFeatures([
            { name: 'prefers-color-scheme', value: dark ? 'dark' : 'light' },
        ]);
        await page.setViewport({ width, height, deviceScaleFactor: scale });
        await page.goto(url);

        return pages.push(page) - 1;
    },


    // an expression in the page, or in the first frame of it

    async value(i, expression) {
        return pages[i].evaluate(expression);
    },


    async inner(i, expression) {
        return pages[i].frames()[1].evaluate(expression);
    },


    async wait(i, expression) {
        await pages[i].waitForFunction(expression, { polling: 50 });
    },


    async click(i, selector) {
        await pages[i].click(selector);
    },


    async hover(i, selector) {
        await pages[i].hover(selector);
    },


    async type(i, text) {
        await pages[i].keyboard.type(text);
    },


    async press(i, ...keys) {
        for (const key of keys) {
            await pages[i].keyboard.press(key);
        }
    },


    async front(i) {
        await pages[i].bringToFront();
    },


    async problems(i) {
        return pages[i].problems.splice(0);
    },


    // what people with a screen reader or poor sight would stumble over

    async audit(i) {
        const axe = fs.readFileSync(require.resolve('axe-core/axe.min.js'),
                                    'utf8');

        await pages[i].evaluate(axe);

        const { passes, violations } = await pages[i].evaluate('axe.run()');
        const found = violations.map(({ help, nodes }) =>
            `${help}: ${nodes.map(({ target }) => target).join(', ')}`);

        return passes.length ? found : ['nothing was checked'];
    },


    async picture(i, file) {
        await pages[i].screenshot({ path: file, fullPage: true });
    },
};


function watch(page) {
    page.on('console', (message) => {
        if (['error', 'warn', 'assert'].includes(message.type())) {
            page.problems.push(`console: ${message.text()}`);
        }
    });

    page.on('pageerror', (error) => {
        page.problems.push(`error: ${error.message}`);
    });

    page.on('dialog', async (dialog) => {
        page.problems.push(`dialog: ${dialog.message()}`);
        await dialog.dismiss();
    });

    page.on('request', (request) => {
        const { protocol, hostname } = new URL(request.url());

        if (protocol !== 'data:' && hostname !== '127.0.0.1') {
            page.problems.push(`another host: ${request.url()}`);
        }
    });
}


async function main() {
    browser = await puppeteer.launch({
        executablePath: '/usr/bin/chromium',
        headless: true,
        userDataDir: folder,
        timeout: 3 * PATIENCE,
        args: ['--no-sandbox', '--disable-gpu', '--disable-quic',
               '--no-first-run', '--disable-background-networking',
               '--disable-component-update', '--disable-sync'],
    });

    for await (const line of readline.createInterface(process.stdin)) {
        const [name, ...args] = JSON.parse(line);

        try {
            const value = await verbs[name](...args);

            console.log(JSON.stringify({ value: value ?? null }));

        } catch (error) {
            console.log(JSON.stringify({ error: `${name}: ${error.message}` }));
        }
    }

    await browser.close();
}


main().catch((error) => {
    console.log(JSON.stringify({ error: error.message }));
    process.exitCode = 1;

}).finally(() => fs.rmSync(folder, { recursive: true, force: true,
                                     maxRetries: 10 }));
