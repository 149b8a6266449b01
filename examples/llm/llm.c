// A small language model as a function: the guest's side of docs/openai.md. Reads one JSON document from the input channel
// and emits JSON lines: chat, completion and embedding. Its weights are those of weights.bin, which train.py makes.
//
// Sampling: temperature 0 unless asked for otherwise, which takes the likeliest token; a seed makes the rest repeatable,
// and without one it is 0. A text longer than the context loses its beginning. System messages are not looked at.

#include <stdlib.h>

#include "json.h"
#include "network.h"

enum { MOST_INPUT = 8 << 20, MOST_TEXT = 65536, MOST_TOP = 20 };

static char document[MOST_INPUT];
static unsigned char text[MOST_TEXT];
static uint16_t prompt[MOST_TEXT + 4];
static struct line line;

struct sampling {
    double temperature, top_p;
    uint64_t random;
    uint32_t most;
    int top;  // log probabilities of so many others, -1 for none at all
};

static bool fail(const char *why)
{
    put(&line, "{\"error\":\"");
    put(&line, why);
    put(&line, "\"}");
    return send_line(&line);
}

// Source: Steele, Lea and Flood, 2014 (SplitMix64).
static double draw(uint64_t *random)
{
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// A number of a document as an integer: what is no number, or far too large, is one of the ends.
static uint32_t clamp(double value, uint32_t most)
{
    return value >= (double)most ? most : value > 0 ? (uint32_t)value : 0;
}

// Add a text to the prompt, keeping of both what fits.
static size_t add_text(size_t used, size_t bytes)
{
    uint16_t *start = prompt + used;
    const size_t room = sizeof prompt / sizeof *prompt - 2 - used;
    const size_t kept = bytes < room ? bytes : room;
    for (size_t i = 0; i < kept; i++) start[i] = text[bytes - kept + i];
    return used + merge_tokens(start, kept);
}

// Keep the end of a prompt that leaves no room for an answer.
static size_t fit(size_t used, size_t wanted)
{
    const size_t most = shape.context - (wanted < shape.context / 2 ? wanted : shape.context / 2);
    if (used <= most) return used;
    memmove(prompt, prompt + used - most, most * sizeof *prompt);
    return most;
}

static size_t read_messages(struct text messages)
{
    size_t used = 0;
    if (!take(&messages, '[')) return 0;
    do {
        struct text role, content, message = messages;
        if (!skip_value(&messages)) break;
        unsigned char name[16];
        if (!find(message, "role", &role) || !find(message, "content", &content)) continue;
        const int32_t length = read_string(&role, name, sizeof name), bytes = read_string(&content, text, sizeof text);
        const bool user = length == 4 && memcmp(name, "user", 4) == 0;
        const bool assistant = length == 9 && memcmp(name, "assistant", 9) == 0;
        if (bytes < 0 || !(user || assistant)) continue;
        if (used > sizeof prompt / sizeof *prompt / 2) used = fit(used, 1);
        prompt[used++] = user ? QUESTION : ANSWER;
        used = add_text(used, (size_t)bytes);
        if (assistant) prompt[used++] = END;
    } while (take(&messages, ','));
    if (used) prompt[used++] = ANSWER;
    return used;
}

// The seed's characters, mixed: every integer that JSON can write is another seed.
static uint64_t read_seed(struct text all)
{
    struct text value;
    uint64_t seed = 0;
    if (!find(all, "seed", &value)) return 0;
    for (; value.at < value.end && !strchr(",} \n", *value.at); value.at++) seed = seed * 31 + (uint64_t)*value.at;
    return seed;
}

// Choose the next token of `logits`.
static uint16_t choose(struct sampling *sampling)
{
    uint16_t best = 0;
    for (uint32_t i = 1; i < shape.vocabulary; i++) best = logits[i] > logits[best] ? (uint16_t)i : best;
    if (sampling->temperature < 1e-3) return best;
    static double shares[MOST_VOCABULARY];
    double total = 0;
    for (uint32_t i = 0; i < shape.vocabulary; i++) {
        total += shares[i] = exp((double)(logits[i] - logits[best]) / sampling->temperature);
    }
    // Of the nucleus: whatever is at least as likely as the token at which the likeliest together reach top_p.
    double kept = 0, least = 2;
    while (kept < sampling->top_p * total && least > 0) {
        double next = 0;
        for (uint32_t i = 0; i < shape.vocabulary; i++) next = shares[i] < least && shares[i] > next ? shares[i] : next;
        for (uint32_t i = 0; i < shape.vocabulary; i++) kept += shares[i] == next ? next : 0;
        least = next;
    }
    double point = draw(&sampling->random) * kept;
    for (uint32_t i = 0; i < shape.vocabulary; i++) {
        if (shares[i] < least) continue;
        point -= shares[i];
        if (point < 0) return (uint16_t)i;
    }
    return best;
}

static void put_token(uint16_t token, double logprob)
{
    unsigned char bytes[256];
    const size_t count = spell(token, bytes, sizeof bytes);
    put(&line, "{\"token\":");
    put_string(&line, bytes, count, true);
    put(&line, ",\"logprob\":");
    put_real(&line, logprob);
    put(&line, ",\"bytes\":[");
    for (size_t i = 0; i < count; i++) {
        if (i) put(&line, ",");
        put_integer(&line, bytes[i]);
    }
    put(&line, "]");
}

static void put_logprobs(uint16_t token, int top)
{
    double most = -INFINITY, total = 0;
    for (uint32_t i = 0; i < shape.vocabulary; i++) most = (double)logits[i] > most ? (double)logits[i] : most;
    for (uint32_t i = 0; i < shape.vocabulary; i++) total += exp((double)logits[i] - most);
    const double all = most + log(total);
    put(&line, ",\"logprobs\":[");
    put_token(token, (double)logits[token] - all);
    put(&line, ",\"top_logprobs\":[");
    bool shown[MOST_VOCABULARY] = {0};
    for (int k = 0; k < top; k++) {
        int best = -1;
        for (uint32_t i = 0; i < shape.vocabulary; i++) {
            if (!shown[i] && (best < 0 || logits[i] > logits[best])) best = (int)i;
        }
        if (best < 0) break;
        shown[best] = true;
        if (k) put(&line, ",");
        put_token((uint16_t)best, (double)logits[best] - all);
        put(&line, "}");
    }
    put(&line, "]}]");
}

// Answer token by token.
static void generate(size_t used, struct sampling *sampling)
{
    static float state[MOST_WIDTH];
    unsigned char pending[512];
    size_t waiting = 0;
    uint32_t made = 0;
    put(&line, "{\"tensorwasm\":1,\"usage\":{\"prompt_tokens\":");
    put_integer(&line, (uint32_t)used);
    put(&line, "}}");
    if (!send_line(&line)) return;
    for (size_t i = 0; i < used; i++) step(prompt[i], i, state);
    const char *why = "length";
    for (; made < sampling->most && used + made < shape.context; made++) {
        const uint16_t token = choose(sampling);
        if (token == END || token == QUESTION || token == ANSWER) {
            why = "stop";
            break;
        }
        waiting += spell(token, pending + waiting, sizeof pending - waiting);
        put(&line, "{\"delta\":");
        const size_t sent = put_string(&line, pending, waiting, false);
        memmove(pending, pending + sent, waiting -= sent);
        if (sampling->top >= 0) put_logprobs(token, sampling->top);
        put(&line, "}");
        if (!send_line(&line)) return;
        step(token, used + made, state);
    }
    put(&line, "{\"finish_reason\":\"");
    put(&line, why);
    put(&line, "\",\"delta\":");
    put_string(&line, pending, waiting, true);
    put(&line, ",\"tokens\":0,\"usage\":{\"completion_tokens\":");
    put_integer(&line, made);
    put(&line, "}}");
    send_line(&line);
}

// Answer each text with the mean of its states, of length 1.
static void embed(struct text input, uint32_t dimensions)
{
    static float state[MOST_WIDTH], mean[MOST_WIDTH];
    put(&line, "{\"tensorwasm\":1}");
    if (!send_line(&line) || !take(&input, '[')) return;
    uint32_t total = 0;
    do {
        const int32_t bytes = read_string(&input, text, sizeof text);
        if (bytes < 0) {
            fail("input is to be an array of texts");
            return;
        }
        prompt[0] = QUESTION;
        const size_t used = fit(add_text(1, (size_t)bytes), 0);
        memset(mean, 0, sizeof mean);
        for (size_t i = 0; i < used; i++) {
            step(prompt[i], i, state);
            for (size_t k = 0; k < shape.width; k++) mean[k] += state[k];
        }
        float square = 0;
        for (size_t k = 0; k < dimensions; k++) square += mean[k] * mean[k];
        put(&line, "{\"embedding\":[");
        for (size_t k = 0; k < dimensions; k++) {
            if (k) put(&line, ",");
            put_real(&line, square > 0 ? (double)(mean[k] / sqrtf(square)) : 0);
        }
        put(&line, "]}");
        if (!send_line(&line)) return;
        total += (uint32_t)used;
    } while (take(&input, ','));
    put(&line, "{\"usage\":{\"prompt_tokens\":");
    put_integer(&line, total);
    put(&line, "}}");
    send_line(&line);
}

static bool is(struct text value, const char *wanted)
{
    unsigned char name[16];
    const int32_t length = read_string(&value, name, sizeof name);
    return length == (int32_t)strlen(wanted) && memcmp(name, wanted, (size_t)length) == 0;
}

[[clang::export_name("main")]] void answer(void)
{
    const uint32_t length = tw_input_len();
    const struct text all = {document, document + length};
    struct text kind, value;
    if (!open_weights() || length > sizeof document || tw_read_input(document, length) != (int32_t)length) {
        put(&line, "{\"tensorwasm\":1}\n");
        fail("the request is longer than this model takes");
        return;
    }
    struct sampling sampling = {
        .temperature = number_of(all, "temperature", 0),
        .top_p = number_of(all, "top_p", 1),
        .random = read_seed(all),
        .most = clamp(number_of(all, "max_tokens", MOST_CONTEXT), MOST_CONTEXT),
        .top = find(all, "logprobs", &value) && *value.at == 't' ? (int)clamp(number_of(all, "top_logprobs", 0), MOST_TOP) : -1,
    };
    if (find(all, "kind", &kind) && is(kind, "embedding") && find(all, "input", &value)) {
        const double dimensions = number_of(all, "dimensions", shape.width);
        if (dimensions >= 1 && dimensions <= shape.width) return embed(value, (uint32_t)dimensions);
        put(&line, "{\"tensorwasm\":1}\n");
        fail("dimensions are more than the vectors of this model have");
        return;
    }
    size_t used = 0;
    if (find(all, "messages", &value)) used = read_messages(value);
    if (find(all, "prompt", &value)) {
        const int32_t bytes = read_string(&value, text, sizeof text);
        used = bytes > 0 ? add_text(0, (size_t)bytes) : 0;
    }
    if (used) return generate(fit(used, sampling.most), &sampling);
    put(&line, "{\"tensorwasm\":1}\n");
    fail("there is nothing to answer");
}
