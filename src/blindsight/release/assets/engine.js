"use strict";
// From a picture to a ranking of the released cells. Plain arithmetic, in the order in which the
// Python package computes it, so that both give the same hits.

// ---- Resizing: Pillow's bicubic filter with its 22-bit weights, horizontally first ----

const PRECISION = 4194304; // 2^22

function bicubic(distance) {
  const x = Math.abs(distance);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * -0.5;
  return 0;
}

// For each output pixel: the first input pixel that it depends on, and the integer weights.
function resizeWeights(inputSize, outputSize) {
  const scale = inputSize / outputSize;
  const width = Math.max(scale, 1);
  const support = 2 * width;
  return Array.from({ length: outputSize }, (_, i) => {
    const centre = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(inputSize, Math.trunc(centre + support + 0.5));
    const weights = [];
    for (let j = first; j < last; j++) weights.push(bicubic((j - centre + 0.5) / width));
    const sum = weights.reduce((a, b) => a + b, 0);
    return {
      first,
      weights: weights.map((weight) => {
        const scaled = (weight / sum) * PRECISION;
        return Math.trunc(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
      }),
    };
  });
}

function toByte(sum) {
  const value = Math.floor(sum / PRECISION);
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

// RGBA (or RGB) pixels to an RGB square of `size` pixels.
function resize(pixels, width, height, size, channels) {
  let current = pixels;
  let step = channels;
  let currentWidth = width;
  if (width !== size || channels !== 3) {
    const narrow = new Uint8Array(size * height * 3);
    const columns = width === size
      ? Array.from({ length: size }, (_, i) => ({ first: i, weights: [PRECISION] }))
      : resizeWeights(width, size);
    columns.forEach(({ first, weights }, x) => {
      for (let y = 0; y < height; y++) {
        for (let c = 0; c < 3; c++) {
          let sum = PRECISION / 2;
          for (let j = 0; j < weights.length; j++) {
            sum += weights[j] * current[(y * width + first + j) * step + c];
          }
          narrow[(y * size + x) * 3 + c] = toByte(sum);
        }
      }
    });
    current = narrow;
    step = 3;
    currentWidth = size;
  }
  if (height === size) return current;
  const result = new Uint8Array(size * size * 3);
  resizeWeights(height, size).forEach(({ first, weights }, y) => {
    for (let x = 0; x < size; x++) {
      for (let c = 0; c < 3; c++) {
        let sum = PRECISION / 2;
        for (let j = 0; j < weights.length; j++) {
          sum += weights[j] * current[((first + j) * currentWidth + x) * step + c];
        }
        result[(y * size + x) * 3 + c] = toByte(sum);
      }
    }
  });
  return result;
}

// ---- The network: convolutions with the normalisation folded in ----

const atMost6 = (value) => (value < 0 ? 0 : value > 6 ? 6 : value);

// A 1 x 1 convolution. Four pixels and two channels at a time, which is three times as fast.
function pointwise(input, count, channelsIn, layer) {
  const { kernel, bias, clipped } = layer;
  const channelsOut = bias.length;
  const padded = (count + 3) & ~3;
  const output = new Float32Array(padded * channelsOut);
  for (let pixel = 0; pixel < padded; pixel += 4) {
    const x0 = pixel * channelsIn;
    const x1 = x0 + channelsIn;
    const x2 = x1 + channelsIn;
    const x3 = x2 + channelsIn;
    for (let channel = 0; channel < channelsOut; channel += 2) {
      const w0 = channel * channelsIn;
      const w1 = w0 + channelsIn;
      let a0 = bias[channel], a1 = a0, a2 = a0, a3 = a0;
      let b0 = bias[channel + 1], b1 = b0, b2 = b0, b3 = b0;
      for (let i = 0; i < channelsIn; i++) {
        const u = kernel[w0 + i];
        const v = kernel[w1 + i];
        const p0 = input[x0 + i], p1 = input[x1 + i], p2 = input[x2 + i], p3 = input[x3 + i];
        a0 += p0 * u; a1 += p1 * u; a2 += p2 * u; a3 += p3 * u;
        b0 += p0 * v; b1 += p1 * v; b2 += p2 * v; b3 += p3 * v;
      }
      const at = pixel * channelsOut + channel;
      output[at] = a0; output[at + 1] = b0;
      output[at + channelsOut] = a1; output[at + channelsOut + 1] = b1;
      output[at + 2 * channelsOut] = a2; output[at + 2 * channelsOut + 1] = b2;
      output[at + 3 * channelsOut] = a3; output[at + 3 * channelsOut + 1] = b3;
    }
  }
  if (clipped) for (let i = 0; i < output.length; i++) output[i] = atMost6(output[i]);
  return output;
}

// A depthwise convolution or the first one; kernels lie as (row, column, output, input).
function spatial(input, side, channelsIn, layer) {
  const { kernel, bias, stride, pad, depthwise } = layer;
  const reach = layer.side;
  const channelsOut = bias.length;
  const sideOut = Math.ceil(side / stride);
  const output = new Float32Array(((sideOut * sideOut + 3) & ~3) * channelsOut);
  const sums = new Float64Array(channelsOut);
  for (let row = 0; row < sideOut; row++) {
    for (let column = 0; column < sideOut; column++) {
      for (let o = 0; o < channelsOut; o++) sums[o] = bias[o];
      for (let i = 0; i < reach; i++) {
        const y = row * stride + i - pad;
        if (y < 0 || y >= side) continue;
        for (let j = 0; j < reach; j++) {
          const x = column * stride + j - pad;
          if (x < 0 || x >= side) continue;
          const at = (y * side + x) * channelsIn;
          if (depthwise) {
            const from = (i * reach + j) * channelsOut;
            for (let o = 0; o < channelsOut; o++) sums[o] += input[at + o] * kernel[from + o];
          } else {
            for (let o = 0; o < channelsOut; o++) {
              const from = ((i * reach + j) * channelsOut + o) * channelsIn;
              for (let c = 0; c < channelsIn; c++) sums[o] += input[at + c] * kernel[from + c];
            }
          }
        }
      }
      const at = (row * sideOut + column) * channelsOut;
      for (let o = 0; o < channelsOut; o++) output[at + o] = atMost6(sums[o]);
    }
  }
  return { output, side: sideOut };
}

// Kernels come as (output, input, row, column).
function laidOut(layer) {
  const { kernel, bias } = layer;
  if (layer.side === 1) return layer;
  const area = layer.side * layer.side;
  const perOutput = kernel.length / bias.length / area;
  const moved = new Float32Array(kernel.length);
  for (let o = 0; o < bias.length; o++) {
    for (let c = 0; c < perOutput; c++) {
      for (let j = 0; j < area; j++) {
        moved[(j * bias.length + o) * perOutput + c] = kernel[(o * perOutput + c) * area + j];
      }
    }
  }
  return { ...layer, kernel: moved };
}

// The features of one picture; `pause` lets the page stay alive between blocks.
async function runNetwork(rgb, size, layers, pause) {
  let values = Float32Array.from(rgb, (value) => (value - 127) / 128);
  let side = size;
  let channels = 3;
  let entering = values;
  for (const layer of layers) {
    if (layer.starts) {
      entering = values;
      await pause();
    }
    if (layer.side > 1) {
      const result = spatial(values, side, channels, layer);
      values = result.output;
      side = result.side;
    } else {
      values = pointwise(values, side * side, channels, layer);
    }
    channels = layer.bias.length;
    if (layer.adds) for (let i = 0; i < values.length; i++) values[i] += entering[i];
  }
  const features = new Float64Array(channels);
  for (let pixel = 0; pixel < side * side; pixel++) {
    for (let c = 0; c < channels; c++) features[c] += values[pixel * channels + c];
  }
  return features.map((value) => value / (side * side));
}

// ---- From features to a point among the cells ----

function unit(vector) {
  const norm = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  return norm > 0 ? vector.map((value) => value / norm) : vector;
}

function withoutMean(vector) {
  const mean = vector.reduce((sum, value) => sum + value, 0) / vector.length;
  return vector.map((value) => value - mean);
}

// vector (rows) times matrix (rows, columns)
function product(vector, matrix, columns) {
  const result = new Float64Array(columns);
  for (let i = 0; i < vector.length; i++) {
    const factor = vector[i];
    if (factor === 0) continue;
    for (let j = 0, at = i * columns; j < columns; j++) result[j] += factor * matrix[at + j];
  }
  return result;
}

// The inner products of a vector with each row of a matrix.
function innerProducts(vector, matrix) {
  const length = vector.length;
  const result = new Float64Array(matrix.length / length);
  for (let row = 0; row < result.length; row++) {
    let sum = 0;
    for (let i = 0, at = row * length; i < length; i++) sum += vector[i] * matrix[at + i];
    result[row] = sum;
  }
  return result;
}

const seenFrom = (point, centre) =>
  centre.some((value) => value) ? unit(point.map((value, i) => value - centre[i])) : point;

function embed(features, book) {
  const rows = book.rowMean ? withoutMean(features) : features;
  return seenFrom(unit(product(rows, book.axes, book.width)), book.centre);
}

// The values of a linear hash function, and the weighted sums of signs of the codes that occur.
function bitScores(features, book, signs) {
  const row = unit(withoutMean(features));
  const values = product(row, book.weights, book.width).map((value, i) => value + book.offset[i]);
  return innerProducts(values.map(Math.fround), signs);
}

// How well a point fits each cell.
function similarity(point, book) {
  if (book.kind === "groups") return similarityOfGroups(point, book);
  if (book.kind === "pairs") return similarityOfPairs(point, book);
  return similarityOfAnswers(answersOf(point, book), book);
}

function similarityOfGroups(point, book) {
  const sums = new Float64Array(book.k);
  const sizes = new Float64Array(book.k);
  innerProducts(point, book.atoms).forEach((value, atom) => {
    sums[book.group[atom]] += Math.exp(value / 0.1);
    sizes[book.group[atom]]++;
  });
  return sums.map((sum, cell) => 0.1 * Math.log(sum / sizes[cell]));
}

function similarityOfPairs(point, book) {
  const near = innerProducts(point, book.atoms);
  const neighbours = book.neighbours.length / near.length;
  return Float64Array.from(book.neighbours, (other, cell) =>
    (near[Math.trunc(cell / neighbours)] + 0.6 * near[other]) / book.norms[cell]);
}

// What the classifier of the public folder says of a point: a probability for each class or label.
function answersOf(point, book) {
  const scores = innerProducts(point, book.coefficients).map((value, i) => value + book.intercept[i]);
  if (book.kind === "labels") {
    return scores.map((value) => 1 / (1 + Math.exp(-Math.max(-30, Math.min(30, value)))));
  }
  const largest = scores.reduce((a, b) => Math.max(a, b));
  const weights = scores.map((value) => Math.exp(value - largest));
  const total = weights.reduce((a, b) => a + b);
  return weights.map((value) => value / total);
}

function similarityOfAnswers(answers, book) {
  const classes = answers.length;
  const groups = book.groups;
  const result = new Float64Array(book.k);
  for (let cell = 0; cell < book.k; cell++) {
    let shared = 0;
    if (book.kind === "labels") {
      let none = 1;
      for (let i = 0; i < classes; i++) {
        none *= 1 - answers[i] * (groups ? groups[cell * classes + i] : Number(i === cell));
      }
      shared = 1 - none;
    } else if (groups) {
      for (let i = 0; i < classes; i++) shared += answers[i] * groups[cell * classes + i];
    } else {
      shared = answers[cell];
    }
    const log = Math.log(Math.max(shared, Math.exp(-30)));
    result[cell] = groups ? log - Math.log(Math.max(1 - shared, 1e-6)) : log;
  }
  return result;
}

// ---- Reading released cells ----

// The share of the stored photos whose true cell is each group: 30 steps of EM from equal shares.
function shares(counts, truth, k) {
  const total = counts.reduce((a, b) => a + b, 0);
  const lie = (1 - truth) / (k - 1);
  const size = k / counts.length;
  const kept = truth - lie;
  let prior = new Float64Array(counts.length).fill(1 / counts.length);
  if (!total) return prior;
  for (let step = 0; step < 30; step++) {
    const ratio = prior.map((share, i) => counts[i] / (kept * share + lie * size));
    const all = ratio.reduce((a, b) => a + b, 0);
    prior = prior.map((share, i) => (share * (kept * ratio[i] + lie * size * all)) / total);
    const sum = prior.reduce((a, b) => a + b, 0);
    prior = prior.map((share) => share / sum);
  }
  return prior;
}

function readCells(book, counts) {
  const k = book.k;
  const truth = 1 / (1 + (k - 1) * Math.exp(-book.epsilon));
  const lie = (1 - truth) / (k - 1);
  const total = counts.reduce((a, b) => a + b, 0);
  const perGroup = book.kind === "pairs" ? book.neighbours.length / (book.atoms.length / book.width) : 1;
  const coarse = new Float64Array(k / perGroup);
  counts.forEach((count, cell) => { coarse[Math.trunc(cell / perGroup)] += count; });
  const share = shares(coarse, truth, k);
  const prior = Float64Array.from(counts, (_, cell) => share[Math.trunc(cell / perGroup)] / perGroup);
  const own = prior.map((value) => ((truth - lie) * value) / ((truth - lie) * value + lie));
  const shown = truth >= 0.8 || total >= Math.max(1000, 40 * k);
  return {
    k, truth, lie, total, counts, prior, own,
    trust: shown ? trustOf(prior, counts, truth, lie, total) : null,
    relevant: book.relevant, slope: book.slope,
  };
}

// For each cell the probability that a photo stored under it truly lies in it.
function trustOf(prior, counts, truth, lie, total) {
  const k = prior.length;
  const even = prior.map((share) => (total ? (total * share + 100 / k) / (total + 100) : share));
  const trust = even.map((share) =>
    Math.min(1 - 1e-9, Math.max(1e-9, (truth * share) / ((truth - lie) * share + lie))));
  if (!total) return trust;
  const odds = trust.map((value) => Math.log(value / (1 - value)));
  let low = -30;
  let high = 30;
  for (let step = 0; step < 50; step++) {
    const middle = 0.5 * (low + high);
    let mean = 0;
    odds.forEach((value, cell) => { mean += counts[cell] / total / (1 + Math.exp(-(value + middle))); });
    if (mean > truth) high = middle; else low = middle;
  }
  return odds.map((value) => 1 / (1 + Math.exp(-(value + 0.5 * (low + high)))));
}

// The shift at which the mean of the logistic over the stored photos is `relevant`.
function level(half, reading) {
  const f = Math.fround;
  const logistic = (value) => (Math.tanh(value) + 1) * 0.5;
  const low = half.reduce((a, b) => Math.min(a, b));
  const high = half.reduce((a, b) => Math.max(a, b));
  const width = Math.max(high - low, 1e-9) / 1024;
  const mass = new Float64Array(1025);
  const perBin = f((1 - 1e-6) / width);
  half.forEach((value, cell) => { mass[Math.trunc(f(f(value - f(low)) * perBin))] += reading.prior[cell]; });
  let left = -high - 20;
  let right = -low + 20;
  let shift = 0.5 * (left + right);
  for (let step = 0; step < 40; step++) {
    let mean = 0;
    let steepness = 0;
    mass.forEach((weight, bin) => {
      if (!weight) return;
      const value = logistic(low + (bin + 0.5) * width + shift);
      mean += weight * value;
      steepness += weight * (value - value * value);
    });
    const excess = mean - reading.relevant;
    const before = shift;
    if (excess > 0) right = shift; else left = shift;
    shift -= excess / Math.max(2 * steepness, 1e-300);
    if (!(left < shift && shift < right)) shift = 0.5 * (left + right);
    if (Math.abs(shift - before) < 1e-10) break;
  }
  return f(shift);
}

// The probability that a photo stored under each cell is relevant. Rounded to 32 bits wherever the
// Python package is, because cells with equal scores are ordered by their number.
function scoresOf(similarities, reading) {
  const f = Math.fround;
  const slope = f(0.5 * (reading.slope ?? 5 * Math.log(1 / reading.relevant)));
  const relevant = f(reading.relevant);
  const half = similarities.map((value) => f(slope * f(value)));
  const shift = level(half, reading);
  return half.map((value, cell) => {
    const relevance = f(f(f(Math.tanh(f(value + shift))) + 1) * 0.5);
    return f(reading.relevant + f(f(reading.own[cell]) * f(relevance - relevant)));
  });
}

// How likely all `found` records are lies, of which `lies` are expected, where else some `real` ones
// would be among them.
function allLies(found, lies, real) {
  if (real <= 0) return 0.5;
  if (found > 10 * (lies + 10)) return 0;
  const rate = Math.log(Math.max(lies, 1e-12));
  const often = Math.log(real / (1 + real));
  const terms = [];
  let factorial = 0;
  for (let i = 0; i <= Math.round(found); i++) {
    if (i) factorial += Math.log(i);
    terms.push(i * (rate - often) - factorial);
  }
  const top = terms.reduce((a, b) => Math.max(a, b));
  const sum = terms.reduce((total, term) => total + Math.exp(term - top), 0);
  const ratio = top + Math.log(sum) + found * (often - rate) - Math.log1p(real) + factorial;
  return 1 / (1 + Math.exp(Math.min(ratio, 700)));
}

// Whether anything like the query is stored, as far as the noise lets tell.
function isPresent(similarities, reading, words) {
  if (!reading.total) return true;
  const far = reading.slope !== null
    ? 0 : (words ? 0.5 : 0.09) * (1 + Math.sqrt(50 / Math.max(reading.total, 1)));
  const best = similarities.reduce((a, b) => Math.max(a, b));
  let cells = 0;
  let found = 0;
  similarities.forEach((value, cell) => {
    if (value >= best - far) {
      cells++;
      found += reading.counts[cell];
    }
  });
  const real = (reading.truth - reading.lie) * 0.02 * reading.total;
  return allLies(found, cells * reading.total * reading.lie, real) < 0.7;
}

// splitmix64: the order of cells with equal scores, which means nothing.
function scrambled(number) {
  const mask = (1n << 64n) - 1n;
  let z = (BigInt(number) + 0x9E3779B97F4A7C15n) & mask;
  z = ((z ^ (z >> 30n)) * 0xBF58476D1CE4E5B9n) & mask;
  z = ((z ^ (z >> 27n)) * 0x94D049BB133111EBn) & mask;
  return Number((z ^ (z >> 31n)) >> 32n);
}

// The cells that hold photos, best first.
function rankedCells(scores, counts) {
  const filled = [];
  counts.forEach((count, cell) => { if (count) filled.push(cell); });
  return filled.sort((a, b) => scores[b] - scores[a] || scrambled(a) - scrambled(b));
}
