// The file of weights, the tokenizer and the network: what network.py and train.py say, in plain C.
#ifndef LLM_NETWORK_H
#define LLM_NETWORK_H

#include <math.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { QUESTION = 256, ANSWER = 257, END = 258, FIRST_MERGE = 259 };
enum { MOST_WIDTH = 512, MOST_HIDDEN = 2048, MOST_CONTEXT = 1024, MOST_VOCABULARY = 8192, MOST_CACHE = 1 << 20 };

alignas(16) static const unsigned char FILE_OF_WEIGHTS[] = {
#embed "weights.bin"
};

struct head {
    uint32_t magic, version, vocabulary, context, width, heads, hidden, layers, merges;
};

static struct head shape;
static const uint16_t *merges;
static const float *cosines, *sines, *embedding, *layers, *last;
static float keys[MOST_CACHE], values[MOST_CACHE];  // (layers, context, width)
static float logits[MOST_VOCABULARY];

static inline size_t layer_size(void)
{
    return 2 * shape.width + 4 * shape.width * shape.width + 3 * shape.width * shape.hidden;
}

// Find everything in the file. False if it is none, or larger than there is room for.
static inline bool open_weights(void)
{
    memcpy(&shape, FILE_OF_WEIGHTS, sizeof shape);
    if (shape.magic != 0x4d4c5754 || shape.version != 1 || !shape.heads || shape.width % (2 * shape.heads)) return false;
    if (shape.width > MOST_WIDTH || shape.hidden > MOST_HIDDEN || shape.context > MOST_CONTEXT) return false;
    if (shape.vocabulary > MOST_VOCABULARY || shape.layers > 64) return false;
    if (shape.layers * shape.context * shape.width > MOST_CACHE) return false;
    const size_t half = shape.width / shape.heads / 2;
    merges = (const uint16_t *)(FILE_OF_WEIGHTS + sizeof shape);
    cosines = (const float *)(FILE_OF_WEIGHTS + sizeof shape + (shape.merges * 4 + 3) / 4 * 4);
    sines = cosines + shape.context * half;
    embedding = sines + shape.context * half;
    layers = embedding + shape.vocabulary * shape.width;
    last = layers + shape.layers * layer_size();
    return (const unsigned char *)(last + shape.width) == FILE_OF_WEIGHTS + sizeof FILE_OF_WEIGHTS;
}

// Turn bytes, one in each token, into the tokens of the vocabulary, in place. Answers how many are left.
static inline size_t merge_tokens(uint16_t *tokens, size_t count)
{
    for (uint32_t m = 0; m < shape.merges; m++) {
        size_t used = 0;
        for (size_t i = 0; i < count; used++) {
            const bool pair = i + 1 < count && tokens[i] == merges[2 * m] && tokens[i + 1] == merges[2 * m + 1];
            tokens[used] = pair ? (uint16_t)(FIRST_MERGE + m) : tokens[i];
            i += pair ? 2 : 1;
        }
        count = used;
    }
    return count;
}

// Write the bytes that a token stands for. Answers how many; those that separate turns stand for none.
static inline size_t spell(uint16_t token, unsigned char *out, size_t most)
{
    if (token < 256) return most ? out[0] = (unsigned char)token, 1 : 0;
    if (token < FIRST_MERGE || (uint32_t)(token - FIRST_MERGE) >= shape.merges) return 0;
    const uint16_t *pair = merges + 2 * (token - FIRST_MERGE);  // of tokens that are earlier than this: it ends
    if (pair[0] >= token || pair[1] >= token) return 0;
    const size_t used = spell(pair[0], out, most);
    return used + spell(pair[1], out + used, most - used);
}

static inline void multiply(float *restrict out, const float *restrict matrix, const float *restrict x, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++) {
        float sum = 0;
        for (size_t k = 0; k < columns; k++) sum += matrix[i * columns + k] * x[k];
        out[i] = sum;
    }
}

static inline void normalise(float *restrict out, const float *restrict x, const float *restrict weight)
{
    float sum = 0;
    for (size_t i = 0; i < shape.width; i++) sum += x[i] * x[i];
    const float scale = 1 / sqrtf(sum / (float)shape.width + 1e-5f);
    for (size_t i = 0; i < shape.width; i++) out[i] = x[i] * scale * weight[i];
}

static inline void rotate(float *x, size_t place)
{
    const size_t half = shape.width / shape.heads / 2;
    for (size_t head = 0; head < shape.heads; head++, x += 2 * half) {
        for (size_t i = 0; i < half; i++) {
            const float c = cosines[place * half + i], s = sines[place * half + i], a = x[i], b = x[i + half];
            x[i] = a * c - b * s;
            x[i + half] = a * s + b * c;
        }
    }
}

static inline void attend(float *restrict out, const float *restrict query, const float *restrict key, const float *restrict value, size_t place)
{
    const size_t size = shape.width / shape.heads;
    static float shares[MOST_CONTEXT];
    for (size_t head = 0; head < shape.heads; head++) {
        const float *q = query + head * size;
        float most = -INFINITY, total = 0;
        for (size_t t = 0; t <= place; t++) {
            float sum = 0;
            for (size_t i = 0; i < size; i++) sum += q[i] * key[t * shape.width + head * size + i];
            shares[t] = sum / sqrtf((float)size);
            if (shares[t] > most) most = shares[t];
        }
        for (size_t t = 0; t <= place; t++) total += shares[t] = expf(shares[t] - most);
        for (size_t i = 0; i < size; i++) {
            float sum = 0;
            for (size_t t = 0; t <= place; t++) sum += shares[t] * value[t * shape.width + head * size + i];
            out[head * size + i] = sum / total;
        }
    }
}

// Read one token at one place after those before it; `state` gets the last state, `logits` what may come next.
static inline void step(uint16_t token, size_t place, float *state)
{
    static float x[MOST_WIDTH], h[MOST_WIDTH], query[MOST_WIDTH], seen[MOST_WIDTH], gate[MOST_HIDDEN], up[MOST_HIDDEN];
    const size_t width = shape.width, hidden = shape.hidden, square = width * width;
    memcpy(x, embedding + token * width, width * sizeof *x);
    for (size_t layer = 0; layer < shape.layers; layer++) {
        const float *at = layers + layer * layer_size();
        float *key = keys + layer * shape.context * width, *value = values + layer * shape.context * width;
        normalise(h, x, at);
        at += width;
        multiply(query, at, h, width, width);
        multiply(key + place * width, at + square, h, width, width);
        multiply(value + place * width, at + 2 * square, h, width, width);
        rotate(query, place);
        rotate(key + place * width, place);
        attend(seen, query, key, value, place);
        multiply(h, at + 3 * square, seen, width, width);
        for (size_t i = 0; i < width; i++) x[i] += h[i];
        at += 4 * square;
        normalise(h, x, at);
        at += width;
        multiply(gate, at, h, hidden, width);
        multiply(up, at + hidden * width, h, hidden, width);
        for (size_t i = 0; i < hidden; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
        multiply(h, at + 2 * hidden * width, gate, width, hidden);
        for (size_t i = 0; i < width; i++) x[i] += h[i];
    }
    normalise(state, x, last);
    multiply(logits, embedding, state, shape.vocabulary, width);
}

#endif
