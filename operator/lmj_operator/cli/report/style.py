"""How the page looks: in light and in dark, wide and on a phone."""

CSS = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--dim:#5c656e;--rule:#dfe3e7;--card:#f5f7f9;--line:#2166ac;--validation:#b35806;
--test:#1b7837;--failed:#c0242f;--moved:#6a4fb3;--on:#fff}
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e9ec;--dim:#9aa4ad;--rule:#31373d;--card:#1d2226;--line:#6db3f2;
--validation:#f0a04b;--test:#5fc27a;--failed:#ff7b7b;--moved:#b79df5;--on:#14171a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 3rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:anywhere}
h1{margin:0;font-size:1.6rem;line-height:1.25}h2{margin:2rem 0 .5rem;font-size:1.15rem}p{margin:.4rem 0}
.dim,footer,figcaption{color:var(--dim);font-size:.875rem}
.phase{display:inline-block;margin-left:.5rem;padding:.1rem .6rem;border-radius:1rem;background:var(--card);border:1px solid var(--rule);
font-size:.9rem;font-weight:400;vertical-align:middle}.phase.Succeeded{color:var(--test)}.phase.Failed{color:var(--failed)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:.5rem;margin:1rem 0;padding:0}
.tiles div{background:var(--card);border-radius:.5rem;padding:.5rem .75rem}
.tiles dt{color:var(--dim);font-size:.8rem}.tiles dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem;margin:0}.facts dt{color:var(--dim)}.facts dd{margin:0}
figure{margin:0}svg{display:block;width:100%;height:auto}.w380{display:none}
svg text{font:12px system-ui,sans-serif;fill:var(--dim);font-variant-numeric:tabular-nums}
.grid{stroke:var(--rule)}.axis{stroke:var(--dim)}.line{fill:none;stroke:var(--line);stroke-width:1.5;stroke-linejoin:round}
circle.line{fill:var(--line)}.validation{fill:var(--validation)}.test{fill:var(--test)}
.mark line{stroke-width:1.5}.mark text,.badge{font-weight:600}svg .mark text{fill:var(--on);font-weight:600}
.failed line{stroke:var(--failed);stroke-dasharray:4 3}.failed rect{fill:var(--failed)}
.moved line{stroke:var(--moved)}.moved rect{fill:var(--moved)}
.badge{display:inline-block;min-width:1.4em;padding:0 .3em;text-align:center;color:var(--on);border-radius:1em}
.badge.failed{background:var(--failed)}.badge.moved{background:var(--moved);border-radius:.25em}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.3em}.key.loss{height:.2em;vertical-align:middle;background:var(--line)}
.key.validation{border-radius:50%;background:var(--validation)}.key.test{transform:rotate(45deg) scale(.8);background:var(--test)}
figcaption span{margin-right:1rem;white-space:nowrap}
table{width:100%;border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
th{color:var(--dim);font-weight:400;white-space:nowrap}summary{cursor:pointer;color:var(--dim)}footer{margin-top:2.5rem}
@media(max-width:40rem){.w380{display:block}.w880{display:none}thead{display:none}tr{display:block;padding:.5rem 0;
border-bottom:1px solid var(--rule)}td{display:grid;grid-template-columns:6.5rem 1fr;border:0;padding:.1rem 0}
td::before{content:attr(data-of);color:var(--dim)}td:empty{display:none}}
@media print{body{max-width:none}}
"""
