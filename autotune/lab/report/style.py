"""The page's style sheet: one column on a phone, light and dark by the reader's system, quiet on paper."""

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--page:#f6f7f9;--box:#fff;--ink:#1b2330;--soft:#5a6678;--line:#dfe3ea;--grid:#e9ecf1;
--accent:#0b63ce;--good:#0a7a4b;--bad:#a8540a;--warn:#fdf3e4;--fine:#e8f6ef;--shade:#1b233038;
--h0:#06603f;--h1:#1d8558;--h2:#58ad7c;--h3:#a5d3a6;--h4:#f2e6a8;--h5:#f5c477;--h6:#e8956a;--h7:#b54a41;
--t0:#fff;--t1:#fff;--t2:#0c2417;--t3:#0c2417;--t4:#33280a;--t5:#33280a;--t6:#2b1006;--t7:#fff;
--failed:#e3e6ec;--failed-ink:#5a6678;--tuned:#0b63ce;--default:#9aa7ba;--baseline:#d08a1d;--fanova:#0b63ce;--ped:#8a5cc7;
--s0:#c8453b;--s1:#e08b2c;--s2:#7e5bb5;--s3:#3d8fb0;--s4:#7c8798}
@media (prefers-color-scheme:dark){:root{--page:#10141b;--box:#181e28;--ink:#e6eaf1;--soft:#9aa6b8;--line:#2b3442;
--grid:#242c39;--accent:#6cb0ff;--good:#4fd09a;--bad:#f0a85c;--warn:#2d2417;--fine:#15291f;--shade:#000c;
--h0:#7df0b8;--h1:#45c78c;--h2:#278059;--h3:#265f4a;--h4:#5d5a35;--h5:#7f5a2a;--h6:#8b4430;--h7:#7a2b33;
--t0:#06281a;--t1:#06281a;--t2:#f2fff8;--t3:#f2fff8;--t4:#fff9dc;--t5:#fff2dd;--t6:#ffe9e0;--t7:#ffe3e3;
--failed:#2b3442;--failed-ink:#9aa6b8;--tuned:#6cb0ff;--default:#66748a;--baseline:#e0a440;--fanova:#6cb0ff;--ped:#b592ee;
--s0:#f0776c;--s1:#f0a850;--s2:#b592ee;--s3:#62bfe0;--s4:#8a96a8}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;overflow-wrap:anywhere;
background:var(--page);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:1140px;margin:0 auto;padding:0 20px}
header{padding-top:36px}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .3em;letter-spacing:-.01em}
h2{font-size:1.4rem;line-height:1.25;margin:2.2em 0 .6em;padding-top:.9em;border-top:1px solid var(--line)}
h3{font-size:1.1rem;margin:1.9em 0 .5em}
h4{font-size:1rem;margin:0;display:inline}
h5{font-size:.86rem;margin:0 0 .35em;font-weight:600}
h6{font-size:.78rem;margin:0 0 .1em;font-weight:500;color:var(--soft)}
p{margin:.5em 0;max-width:75ch}
a{color:var(--accent)}
nav{display:flex;flex-wrap:wrap;gap:.3em 1.2em;margin:.9em 0 0;font-size:.92rem}
code{font:.86em/1.45 ui-monospace,"Cascadia Mono","SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
overflow-wrap:anywhere}
.summary p{max-width:90ch}.summary h3{margin:1.1em 0 .2em}
.muted,.note,small{color:var(--soft)}
.note{font-size:.9rem}
small{font-size:.82rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(180px,1fr));gap:12px;margin:1.4em 0}
.card{background:var(--box);border:1px solid var(--line);border-radius:12px;padding:14px 16px}
.card b{display:block;font-size:1.75rem;line-height:1.15;font-variant-numeric:tabular-nums;letter-spacing:-.02em}
.card span{display:block;font-weight:600;font-size:.92rem}
.card small{display:block}
.checks{list-style:none;margin:.6em 0;padding:0;display:grid;gap:6px;max-width:90ch}
.checks li{display:flex;gap:.8em;padding:.45em .8em;border-radius:8px;font-size:.94rem}
.checks strong{flex:0 0 3em;white-space:nowrap;font-size:.86rem;line-height:1.75}
.checks .good{background:var(--fine)}.checks .good strong{color:var(--good)}
.checks .bad{background:var(--warn)}.checks .bad strong{color:var(--bad)}
.scroll{overflow:auto;background:
linear-gradient(to right,var(--box) 30%,transparent) left/40px 100% no-repeat local,
linear-gradient(to left,var(--box) 30%,transparent) right/40px 100% no-repeat local,
linear-gradient(to right,var(--shade),transparent) left/14px 100% no-repeat scroll,
linear-gradient(to left,var(--shade),transparent) right/14px 100% no-repeat scroll,var(--box);
border:1px solid var(--line);border-radius:12px;margin:.8em 0 1.2em}
.scroll.long{max-height:38rem}
.scroll:focus-visible,a:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.88rem}
caption{text-align:left;padding:.7em .9em .2em;font-weight:600}
caption small{display:block;font-weight:400}
th,td{text-align:left;vertical-align:top;padding:.42em .9em;border-top:1px solid var(--grid)}
th{position:sticky;top:0;background:var(--box);font-size:.8rem;font-weight:600;color:var(--soft);white-space:nowrap;border-top:0}
td{min-width:5.5em;overflow-wrap:normal}
td:first-child:not(.number){min-width:13em}
td:has(code){min-width:17em}
td small{display:block}
.whole{white-space:nowrap}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.number{text-align:right;font-variant-numeric:tabular-nums;min-width:3em}
.up strong{color:var(--good)}.down strong{color:var(--bad)}
figure{margin:.8em 0 1.2em;padding:14px 16px;background:var(--box);border:1px solid var(--line);border-radius:12px;
min-width:0}
figcaption{font-weight:600;margin-bottom:.5em}
figcaption small{display:block;font-weight:400}
figure>svg{display:block;width:100%;height:auto;max-width:460px}
figure>svg.wide{max-width:540px}
.columns>figure:only-child{max-width:620px}
.columns{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:0 26px;align-items:start}
.group{margin:.2em 0 1em;min-width:0}
.legend{display:flex;flex-wrap:wrap;gap:.15em 1.1em;font-size:.82rem;color:var(--soft);
margin:.2em 0 .9em;max-width:none}
.legend span{display:inline-flex;align-items:center;gap:.4em}
.swatch{width:14px;height:14px;flex:none;border-radius:3px}
.bars{display:grid;grid-template-columns:minmax(5.5em,max-content) 1fr;gap:3px 10px;margin:0;font-size:.82rem;
align-items:center}
.bars dt{margin:0;overflow-wrap:anywhere;max-width:11em;line-height:1.25}
.bars dd{margin:0;display:grid;grid-template-columns:1fr 9.5em;gap:8px;align-items:center;min-width:0}
.bar{display:block;width:100%;height:11px;background:var(--grid);border-radius:3px}
.value{font-variant-numeric:tabular-nums;color:var(--soft);line-height:1.25}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(158px,1fr));gap:10px 14px}
.panel svg{display:block;width:100%;height:auto;max-width:240px}
svg text{font-family:inherit;font-size:11px;fill:var(--ink)}
svg .tick{fill:var(--soft);font-size:10.5px}
svg .axis{fill:var(--soft);font-size:11.5px}
.middle{text-anchor:middle}.end{text-anchor:end}
.grid{stroke:var(--grid);stroke-width:1}
.line,.line-roof{fill:none;stroke:var(--accent);stroke-width:2.2;stroke-linejoin:round}
.line-roof{stroke:var(--soft);stroke-width:1.8}
.band{fill:var(--accent);opacity:.18}
.dots-screened{fill:none;stroke:var(--default);stroke-width:3.4;stroke-linecap:round;opacity:.55}
.dot-winner,.dot-tuned{fill:var(--tuned)}.dot-baseline{fill:var(--baseline)}.dot-default{fill:var(--default)}
circle{stroke:var(--box);stroke-width:1.2}
.heat-0 rect{fill:var(--h0)}.heat-0 text{fill:var(--t0)}.heat-1 rect{fill:var(--h1)}.heat-1 text{fill:var(--t1)}
.heat-2 rect{fill:var(--h2)}.heat-2 text{fill:var(--t2)}.heat-3 rect{fill:var(--h3)}.heat-3 text{fill:var(--t3)}
.heat-4 rect{fill:var(--h4)}.heat-4 text{fill:var(--t4)}.heat-5 rect{fill:var(--h5)}.heat-5 text{fill:var(--t5)}
.heat-6 rect{fill:var(--h6)}.heat-6 text{fill:var(--t6)}.heat-7 rect{fill:var(--h7)}.heat-7 text{fill:var(--t7)}
.failed rect{fill:var(--failed)}.failed text{fill:var(--failed-ink)}
.is-default rect{stroke:var(--ink);stroke-width:1.6;stroke-dasharray:3 2}
.is-best rect{stroke:var(--ink);stroke-width:2.4;stroke-dasharray:none}
.key-best rect,.key-default rect{fill:none}
.bar-tuned{fill:var(--tuned)}.bar-default{fill:var(--default)}.bar-baseline{fill:var(--baseline)}
.bar-fanova{fill:var(--fanova)}.bar-ped{fill:var(--ped)}
.status-0{fill:var(--s0)}.status-1{fill:var(--s1)}.status-2{fill:var(--s2)}.status-3{fill:var(--s3)}.status-4{fill:var(--s4)}
details{border:1px solid var(--line);border-radius:12px;margin:.6em 0;padding:0 16px}
summary{cursor:pointer;padding:.75em 0;line-height:1.35}
summary .muted{display:block;font-size:.88rem;margin-left:1.05em}
.detail{padding-bottom:.6em;scroll-margin-top:6em}
footer{color:var(--soft);font-size:.85rem;padding-top:1.5em;padding-bottom:3em}
@media (max-width:700px){body{font-size:15.5px}main,header,footer{padding-left:12px;padding-right:12px}
header{padding-top:22px}h1{font-size:1.5rem}.columns{grid-template-columns:minmax(0,1fr)}
.cards{grid-template-columns:1fr 1fr;gap:8px}.card{padding:10px 12px}.card b{font-size:1.4rem}
th,td{padding:.42em .55em}td:first-child:not(.number){min-width:9em}
figure{padding:12px}details{padding:0 10px}.panels{grid-template-columns:repeat(2,minmax(0,1fr));gap:8px}
.bars dd{grid-template-columns:1fr 7.6em}.bars dt{max-width:7em}.checks strong{flex-basis:2.9em}}
@media print{:root{color-scheme:light}body{background:#fff;font-size:10.5pt}figure,.card,.panel{break-inside:avoid}
.scroll,.scroll.long{overflow:visible;max-height:none}caption small,nav{display:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
details::details-content{content-visibility:visible;display:block}}
@media (prefers-reduced-motion:reduce){html{scroll-behavior:auto}}
"""
