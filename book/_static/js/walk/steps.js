// The walk through the model, part 2 of 3: its steps.
//
// A step is
//   { group, stack, attention, name, kind, block, chapter, result, picture, words, shape, says }
// `group` is where it stands in the list, `stack` the stack that it belongs to, if it does, `block` the
// kind of block that computes it, `chapter` where it is built: [address, name]. The last five are
// functions of `see`: what `look` finds, the choice { i, t, n, h }, the numbers of layers N and heads
// H, and what the figure adds. `result` is the vector that the step ends with, or a text.
"use strict";

{
  const { html, number, sum } = literate;
  const { quoted, extent, strip, table, stack, share, forbidden, boxes, maps } = literate.walk;

  const W = (below) => ["W", html("sub", {}, below)];
  const plural = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  const argmax = (xs) => xs.indexOf(Math.max(...xs));

  // A vector for each token of the source.
  const ofEachToken = ({ encoder: { keys, row } }, title, vectors) =>
    stack(vectors.map((values, s) => ({
      name: keys[s], spoken: `${title}, ${quoted(keys[s])}`, values, kind: "stream", look: s === row ? "chosen" : "",
    })), title, extent(...vectors));

  const entryRows = ({ id, place, token, position, x }) =>
    stack([
      { name: `√${x.length} · E[${id}]`, values: token, kind: "stream" },
      { name: `+ position ${place}`, values: position, kind: "plain" },
      { name: "= x", values: x, kind: "stream", look: "sum" },
    ], "", extent(token, position, x));

  // What a sublayer has computed, `name`, is added to what came in, and normed.
  const residualRows = (name, spoken, { x, y, sum, output }) => {
    const most = extent(x, y, sum, output);
    return [
      { name, spoken, values: y, kind: "stream", most },
      { name: "+ x", values: x, kind: "stream", most },
      { name: "= sum", values: sum, kind: "stream", most },
      { name: "normed", values: output, kind: "stream", most, look: "sum" },
    ];
  };

  const deviation = (xs) => {
    const mean = sum([...xs]) / xs.length;
    return Math.sqrt(sum([...xs].map((x) => (x - mean) ** 2)) / xs.length);
  };

  // ---------------------------------------------------------------- The four steps of an attention

  const projections = (part) => (see) => {
    const { asks, query, queries, key, value, keys, residual } = see[part];
    const asked = queries.length ? queries.filter(Boolean) : [query];
    const most = { query: extent(...asked), key: extent(...key), value: extent(...value) };
    const cell = (name, values, kind) =>
      values && strip(`${kind} of ${quoted(name)}`, values, kind, most[kind]);
    const row = (name, q, k, v) => ({
      name, look: q === query ? "chosen" : "",
      cells: [cell(name, q, "query"), cell(name, k, "key"), cell(name, v, "value")],
    });
    const rows = keys.map((name, s) => row(name, queries[s], key[s], value[s]));
    return [
      stack([{ name: "its x", spoken: `x of ${quoted(asks)}`, values: residual.x, kind: "stream" }]),
      table(["query", "key", "value"].map((kind) => ({ title: kind, kind })),
        queries.length ? rows : [row(asks, query), ...rows]),
    ];
  };

  const comparison = (part) => (see) => {
    const { asks, query, key, scores, weights, keys, later } = see[part];
    const most = extent(...key);
    const seen = keys.map((name, s) => ({
      name, look: s === argmax(weights) ? "chosen" : "",
      cells: [strip(`key of ${quoted(name)}`, key[s], "key", most), number(scores[s]), share(weights[s])],
    }));
    const unseen = later.map((name) => ({ name, look: "later", cells: [forbidden(), "−∞", share(0)] }));
    return [
      stack([{ name: "its query", spoken: `query of ${quoted(asks)}`, values: query, kind: "query" }]),
      table([
        { title: "key", kind: "key" },
        { title: "score", look: "short" },
        { title: "weight", kind: "query", look: "bar" },
      ], [...seen, ...unseen]),
      maps(see[part], see.h, see.chooseHead),
    ];
  };

  const mixture = (part) => (see) => {
    const { value, weights, output, keys } = see[part];
    const most = extent(...value, output);
    const rows = keys.map((name, s) => ({
      name, look: s === argmax(weights) ? "chosen" : "",
      cells: [
        share(weights[s]),
        strip(`value of ${quoted(name)}`, value[s], "value", most),
        strip(`weight times value of ${quoted(name)}`, value[s].map((x) => weights[s] * x), "value", most),
      ],
    }));
    const whole = { name: "sum", look: "sum", cells: [null, null, strip("sum", output, "value", most)] };
    return [table([
      { title: "weight", kind: "query", look: "bar" },
      { title: "value", kind: "value" },
      { title: "product", kind: "value" },
    ], [...rows, whole])];
  };

  const joining = (part) => (see) => {
    const { joined, output, residual } = see[part];
    const rows = stack([
      { name: `${see.H} heads`, values: joined, kind: "value" },
      ...residualRows(["· ", ...W("O")], "times W O", residual),
    ]);
    rows.querySelector(".strip").append( // our head
      literate.svg("rect", { class: "edge", x: see.h * output.length, y: -1, width: output.length, height: 2 }));
    return [rows];
  };

  // `first` and `second` are what is told of the first two steps, and where they are built; the other
  // two are the same in every attention.
  const attentionSteps = (part, own, first, second) => [
    {
      name: "Query, key, value", kind: "query", block: "attention",
      result: (see) => see[part].query,
      picture: projections(part),
      ...first,
    },
    {
      name: "Scores, weights", kind: "query", block: "attention",
      result: (see) => see[part].weights,
      picture: comparison(part),
      shape: ({ [part]: { query: { length: k }, key: { length: s } } }) =>
        [`softmax(q Kᵀ / √${k}):  (1, ${k}) · (${k}, ${s}) → (1, ${s})`],
      says: ({ h, [part]: { asks, weights, keys } }) => {
        const s = argmax(weights);
        return `Head ${h + 1}: ${quoted(asks)} looks most at ${quoted(keys[s])}, with a weight of ${number(weights[s], 3)}.`;
      },
      ...second,
    },
    {
      name: "Weighted sum", kind: "value", block: "attention",
      chapter: ["02_attention.html#one-word-at-a-time", "Attention"],
      result: (see) => see[part].output,
      picture: mixture(part),
      words: ({ h, [part]: { asks } }) => [
        "Each value is multiplied by its weight, and all of them are added up.",
        ` The sum is what head ${h + 1} brings back for ${quoted(asks)}: mostly the values of the tokens that it looks at.`,
      ],
      shape: ({ [part]: { weights: { length: s }, output: { length: k } } }) =>
        [`weights · V:  (1, ${s}) · (${s}, ${k}) → (1, ${k})`],
      says: ({ h, [part]: { weights } }) =>
        `Head ${h + 1} gives ${plural(weights.filter((w) => w > 0.05).length, "value")} of ${weights.length} a weight above 0.05.`,
    },
    {
      name: "Join, add, norm", kind: "stream", block: "norm",
      chapter: ["05_layers.html#residual-connections", "Layers"],
      result: (see) => see[part].residual.output,
      picture: joining(part),
      words: ({ H, h }) => [
        `The results of the ${H} heads stand side by side (framed is head ${h + 1}), and `, ...W("O"), " mixes them.",
        " What comes out is added to the x that went in, by which nothing gets lost: the residual connection.",
        " Then the norm brings the numbers back to an even scale.",
      ],
      shape: ({ H, [part]: { output: { length: k }, joined: { length: d } } }) =>
        [`${H} · ${k} = ${d}, times `, ...W("O"), `:  (1, ${d}) · (${d}, ${d}) → (1, ${d})`],
      says: ({ [part]: { residual } }) =>
        `The numbers deviate by ${number(deviation(residual.sum))} before the norm, and by ${number(deviation(residual.output))} after it.`,
    },
  ].map((step) => ({ ...own, ...step }));

  // ---------------------------------------------------------------- The feed-forward network

  const networkStep = (part, own, asks) => ({
    ...own, attention: undefined,
    name: "Feed-forward", kind: "stream", block: "feed-forward",
    chapter: ["05_layers.html#a-network-for-each-position", "Layers"],
    result: (see) => see[part].residual.output,
    picture: (see) => [stack([
      { name: ["x ", ...W("1"), " + b"], spoken: "inner units before the cut", values: see[part].wide, kind: "inner" },
      ...residualRows(["· ", ...W("2"), " + b"], "times W 2", see[part].residual),
    ])],
    words: (see) => [
      `Now ${quoted(asks(see))} is by itself. `, ...W("1"), ` makes ${see[part].wide.length} numbers of its ${see[part].residual.x.length}, what is below 0 is cut off (hatched), and `,
      ...W("2"), " brings the rest back to the old width. It is added and normed as before.",
      see.n + 1 < see.N ? ` Layer ${see.n + 2} does all this once more, with weights of its own.` : " This was the last layer.",
    ],
    shape: ({ [part]: { wide: { length: f }, residual: { x: { length: d } } } }) =>
      [`(1, ${d}) · (${d}, ${f}) → (1, ${f}),  (1, ${f}) · (${f}, ${d}) → (1, ${d})`],
    says: ({ [part]: { inner } }) => `${inner.filter((x) => x > 0).length} of ${inner.length} inner units are above 0.`,
  });

  // ---------------------------------------------------------------- All of them

  const inEncoder = { group: "encoder", stack: "encoder", attention: "Self-attention" };
  const back = { group: "decoder", stack: "decoder", attention: "Masked self-attention" };
  const across = { group: "cross", stack: "decoder", attention: "Cross-attention" };

  const steps = [
    {
      group: "source", name: "Tokens", block: "plain",
      chapter: ["09_data.html#byte-pair-encoding-by-hand", "Data"],
      result: (see) => see.encoder.asks,
      picture: (see) => [boxes(see.encoder.keys, see.src, see.i)],
      words: (see) => [
        `The tokeniser cuts the text into pieces from a list of ${see.logits.length} that it has learned. A digit always stands alone, and ␣ is a space.`,
        " All that the model sees are the numbers below the pieces, their ids; <eos> says that the text ends.",
        see.encoder.keys.includes("�") ? " � is a single byte of a sign that the list lacks." : "",
      ],
      shape: (see) => [`${plural([...see.text].length, "character")} → ${plural(see.src.length, "id")}`],
      says: (see) => `${quoted(see.encoder.asks)} is token ${see.i + 1} of ${see.src.length}, and its id is ${see.source.id}.`,
    },
    {
      group: "source", name: "Embedding", kind: "stream", block: "embedding",
      chapter: ["03_embedding.html#what-enters-the-stack", "Embeddings and positions"],
      result: (see) => see.source.x,
      picture: (see) => [entryRows(see.source), ofEachToken(see, "x of all tokens", see.entering)],
      words: ({ source: { x: { length: d } } }) => [
        `The id picks a row of the table E: ${d} learned numbers, times √${d}. The waves of its position are added, since attention by itself knows no order.`,
        " The result, x, is the vector that all further steps work on.",
      ],
      shape: ({ entering: { length: s }, logits: { length: v }, source: { x: { length: d } } }) =>
        [`${plural(s, "row")} of E, which is (${v}, ${d}) → (${s}, ${d})`],
      says: (see) => `${quoted(see.encoder.asks)} is row ${see.source.id} of E, at position ${see.i}.`,
    },
    ...attentionSteps("encoder", inEncoder, {
      chapter: ["04_multi_head.html#the-formula", "Multi-head attention"],
      words: (see) => [
        `Head ${see.h + 1} makes three vectors of each token's x: a query (what does it look for?), a key (what can it be found by?) and a value (what does it hand over?).`,
        " Three learned matrices do it, the same ones for every token.",
      ],
      shape: ({ encoder: { key: { length: s }, query: { length: k }, joined: { length: d } } }) =>
        ["x ", ...W("Q"), `:  (${s}, ${d}) · (${d}, ${k}) → (${s}, ${k}), and so with `, ...W("K"), " and ", ...W("V")],
      says: ({ h, H, encoder: { query: { length: k } } }) =>
        `Head ${h + 1} has ${k} numbers for each; ${H} heads together have ${H} · ${k} = ${H * k}, as many as x.`,
    }, {
      chapter: ["02_attention.html#one-word-at-a-time", "Attention"],
      words: ({ encoder: { asks, query: { length: k } } }) => [
        `The query of ${quoted(asks)} is held against every key. Their dot product is large where both point the same way; it is divided by √${k}, so that its size does not grow with the width.`,
        " Softmax turns these scores into weights that add up to 1.",
      ],
    }),
    networkStep("encoderNetwork", inEncoder, (see) => see.encoder.asks),
    {
      group: "between", name: "Memory", kind: "stream", block: "norm",
      chapter: ["06_encoder.html#how-information-spreads", "The encoder"],
      result: (see) => see.memory[see.i],
      picture: (see) => [ofEachToken(see, "memory", see.memory)],
      words: () => [
        "This is all that the decoder gets to know of the sentence: a vector for each token, which by now has looked at all the others.",
        " It is computed once. Every layer of the decoder looks at it, for every token that is written.",
      ],
      shape: ({ memory }) => [`(${memory.length}, ${memory[0].length})`],
      says: ({ memory }) => `The memory has ${memory.length} · ${memory[0].length} = ${(memory.length * memory[0].length).toLocaleString("en")} numbers.`,
    },
    {
      group: "between", name: "Written so far", kind: "stream", block: "embedding",
      chapter: ["07_decoder.html#shifted-by-one", "The decoder"],
      result: (see) => see.target.x,
      picture: (see) => [boxes(see.decoder.asking, see.tgt, see.t, { lang: "zh-Hans" }), entryRows(see.target)],
      words: (see) => [
        `The decoder reads what it has written itself, behind a first <bos>. It has read up to ${quoted(see.decoder.asks)}, and is to find what comes next.`,
        " The id becomes a vector as in the source, by the same table E.",
      ],
      shape: ({ logits: { length: v }, target: { x: { length: d } } }) => [`1 row of E, which is (${v}, ${d}) → (1, ${d})`],
      says: (see) => `${quoted(see.decoder.asks)} is row ${see.target.id} of E, at position ${see.t}.`,
    },
    ...attentionSteps("decoder", back, {
      chapter: ["04_multi_head.html#what-has-been-computed-already", "Multi-head attention"],
      words: ({ decoder: { asks } }) => [
        `First the decoder looks back at what it has written. Only ${quoted(asks)} is new, so only its query, key and value are computed.`,
        " The keys and values of the tokens before it were kept when these were read: the cache.",
      ],
      shape: ({ decoder: { query: { length: k }, joined: { length: d } } }) =>
        ["x ", ...W("Q"), `:  (1, ${d}) · (${d}, ${k}) → (1, ${k}), and so with `, ...W("K"), " and ", ...W("V")],
      says: ({ t }) => `${plural(t + 1, "key")} and ${plural(t + 1, "value")}, ${t} of each from the cache.`,
    }, {
      chapter: ["07_decoder.html#the-masks-of-a-decoder", "The decoder"],
      words: ({ decoder: { asks } }) => [
        `The query of ${quoted(asks)} meets the keys up to here. What comes later is hidden by the mask (hatched): a score of −∞ becomes a weight of 0.`,
        " In training the whole target lies there, and without the mask the model could read the token that it is to guess.",
      ],
    }),
    ...attentionSteps("cross", across, {
      chapter: ["07_decoder.html#across-queries-from-here-keys-and-values-from-there", "The decoder"],
      words: ({ cross: { asks } }) => [
        `Here the two languages meet. The query comes from ${quoted(asks)}, keys and values come from the memory: the Chinese asks, and the English answers.`,
      ],
      shape: ({ cross: { key: { length: s }, query: { length: k }, joined: { length: d } } }) =>
        ["x ", ...W("Q"), `:  (1, ${d}) · (${d}, ${k}) → (1, ${k});  memory `, ...W("K"), `:  (${s}, ${d}) · (${d}, ${k}) → (${s}, ${k})`],
      says: ({ cross: { key } }) => `One query, and ${plural(key.length, "key")} from the memory.`,
    }, {
      chapter: ["04_multi_head.html#self-attention-and-cross-attention-are-the-same-module", "Multi-head attention"],
      words: ({ cross: { asks } }) => [
        `The query of ${quoted(asks)} is held against the key of every English token: which of them tells what to write next?`,
        " No mask is needed, since the whole source is known.",
      ],
    }),
    networkStep("decoderNetwork", across, (see) => see.decoder.asks),
    {
      group: "output", name: "Logits", kind: "plain", block: "embedding",
      chapter: ["#one-matrix-three-uses", "this chapter"],
      result: (see) => see.logits,
      picture: ({ last, logits, vector, piece }) => {
        const [likely, most] = [literate.largest(logits, 5), extent(logits)];
        const rows = likely.map(vector);
        const scale = extent(...rows);
        const hundreds = Array.from({ length: Math.ceil(logits.length / 100) }, (_, r) => 100 * r);
        return [
          stack([{ name: "last x", values: last, kind: "stream" }]),
          table([{ title: "row of E" }, { title: "logit", look: "short" }], likely.map((id, r) =>
            ({ name: piece(id), cells: [strip(`row ${id} of E`, rows[r], "stream", scale), number(logits[id])] }))),
          stack(hundreds.map((from) => ({
            name: `from id ${from}`, spoken: `logits from id ${from}`, values: logits.slice(from, from + 100), kind: "plain",
          })), `all ${logits.length} logits`, most),
        ];
      },
      words: ({ logits }) => [
        "What leaves the last layer is held against the row of every token in E, the table that made vectors of tokens at the start.",
        ` The ${logits.length} dot products are the logits: a score for each token that could come next. Here are the five largest, and all of them.`,
      ],
      shape: ({ last: { length: d }, logits: { length: v } }) => [`x Eᵀ:  (1, ${d}) · (${d}, ${v}) → (1, ${v})`],
      says: ({ logits, piece }) => {
        const [id] = literate.largest(logits, 1);
        return `The largest logit is that of ${quoted(piece(id))}, ${number(logits[id])}.`;
      },
    },
    {
      group: "output", name: "Next token", block: "plain",
      chapter: ["12_decoding.html#from-logits-to-a-distribution", "Decoding"],
      result: (see) => see.next,
      picture: (see) => see.choices(),
      words: () => [
        "Softmax turns the logits into probabilities. Before, they are divided by the temperature: below 1 the likely becomes likelier, above 1 all come nearer. Top-k cuts off all but the k likeliest; <pad> and <bos> never come next.",
        " Take a token, and the sentence goes on from it.",
      ],
      shape: ({ logits: { length: v } }) => [`softmax(logits / temperature):  (1, ${v}) → (1, ${v}) → one id`],
      says: (see) => see.outcome(),
    },
  ];

  // How the list calls its groups.
  const layer = ({ n, N }) => `layer ${n + 1} of ${N}`;
  const groups = {
    source: () => "Source",
    encoder: (see) => `Encoder, ${layer(see)}`,
    between: () => "Between the stacks",
    decoder: (see) => `Decoder, ${layer(see)}: back`,
    cross: (see) => `Decoder, ${layer(see)}: across`,
    output: () => "Output",
  };

  // Where the way goes on (by 1) or came from (by −1): through every layer, so that the last step of a
  // stack leads to the first one in its next layer. Null at its ends.
  const onwards = ({ step, n }, by, layers) => {
    const [{ stack }, to] = [steps[step], steps[step + by]];
    if (stack && stack !== to.stack && n + by >= 0 && n + by < layers) {
      const inStack = [...steps.keys()].filter((i) => steps[i].stack === stack);
      return { step: inStack.at(by > 0 ? 0 : -1), n: n + by };
    }
    if (!to) return null;
    const enters = to.stack && to.stack !== stack;
    return { step: step + by, n: enters ? (by > 0 ? 0 : layers - 1) : n };
  };

  Object.assign(literate.walk, { steps, groups, onwards });
}
