// A reader of one JSON document and a writer of lines of it. The gateway has checked the document; this reads it all the
// same as if nobody had: it never looks past the end, never recurses, and answers false where it does not understand.
#ifndef LLM_JSON_H
#define LLM_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "tensorwasm.h"

struct text {
    const char *at, *end;
};

static inline void skip_space(struct text *in)
{
    while (in->at < in->end && (*in->at == ' ' || *in->at == '\n' || *in->at == '\r' || *in->at == '\t')) in->at++;
}

static inline bool take(struct text *in, char wanted)
{
    skip_space(in);
    if (in->at == in->end || *in->at != wanted) return false;
    in->at++;
    return true;
}

// Skip a string, whose first quote is next.
static inline bool skip_string(struct text *in)
{
    if (!take(in, '"')) return false;
    while (in->at < in->end && *in->at != '"') in->at += *in->at == '\\' ? 2 : 1;
    if (in->at >= in->end) return false;
    in->at++;
    return true;
}

// Skip any value.
static inline bool skip_value(struct text *in)
{
    int depth = 0;
    do {
        skip_space(in);
        if (in->at >= in->end) return false;
        const char c = *in->at;
        if (c == '"') {
            if (!skip_string(in)) return false;
            continue;
        }
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') depth--;
        if (strchr("{}[],:", c)) {
            if (depth < 0) return false;
            in->at++;
        } else {
            while (in->at < in->end && !strchr("{}[],:\" \n\r\t", *in->at)) in->at++;
        }
    } while (depth > 0);
    return true;
}

// Go on to the value of a key of an object; `in` is at its brace. False if there is none.
static inline bool find(struct text object, const char *key, struct text *value)
{
    struct text in = object;
    const size_t length = strlen(key);
    if (!take(&in, '{') || take(&in, '}')) return false;
    do {
        skip_space(&in);
        const char *start = in.at + 1;
        if (!skip_string(&in)) return false;
        const bool found = (size_t)(in.at - 1 - start) == length && memcmp(start, key, length) == 0;
        if (!take(&in, ':')) return false;
        skip_space(&in);
        if (found) {
            *value = in;
            return true;
        }
        if (!skip_value(&in)) return false;
    } while (take(&in, ','));
    return false;
}

// Read a number: what strtod is for, without its locale and its size.
static inline double read_number(struct text in)
{
    const bool negative = take(&in, '-');
    double value = 0, scale = 1;
    bool fraction = false;
    for (; in.at < in.end; in.at++) {
        if (*in.at == '.' && !fraction) {
            fraction = true;
        } else if (*in.at >= '0' && *in.at <= '9') {
            value = value * 10 + (*in.at - '0');
            if (fraction) scale *= 10;
        } else {
            break;
        }
    }
    value /= scale;
    if (in.at < in.end && (*in.at == 'e' || *in.at == 'E')) {
        in.at++;
        const bool small = take(&in, '-');
        if (!small) take(&in, '+');
        int exponent = 0;
        while (in.at < in.end && *in.at >= '0' && *in.at <= '9' && exponent < 400) exponent = exponent * 10 + (*in.at++ - '0');
        for (; exponent > 0; exponent--) value = small ? value / 10 : value * 10;
    }
    return negative ? -value : value;
}

static inline double number_of(struct text object, const char *key, double otherwise)
{
    struct text value;
    return find(object, key, &value) ? read_number(value) : otherwise;
}

static inline unsigned read_hex(struct text *in)
{
    unsigned value = 0;
    for (int i = 0; i < 4 && in->at < in->end; i++, in->at++) {
        const char c = *in->at;
        value = value * 16 + (unsigned)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return value & 0xffff;
}

static inline size_t put_utf8(unsigned code, unsigned char *out)
{
    if (code < 0x80) return out[0] = (unsigned char)code, 1;
    const size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char LEADS[] = {0, 0xc0, 0xe0, 0xf0};
    for (size_t i = more; i > 0; i--, code >>= 6) out[i] = (unsigned char)(0x80 | (code & 0x3f));
    out[0] = (unsigned char)(LEADS[more] | code);
    return more + 1;
}

// Decode the string that is next into UTF-8. Answers its bytes, or -1; keeps the last `most` of them.
static inline int32_t read_string(struct text *in, unsigned char *out, size_t most)
{
    if (!take(in, '"')) return -1;
    size_t used = 0;
    while (in->at < in->end && *in->at != '"') {
        unsigned char piece[4] = {(unsigned char)*in->at++};
        size_t length = 1;
        if (piece[0] == '\\' && in->at < in->end) {
            static const char FROM[] = "bfnrt", TO[] = "\b\f\n\r\t";
            const char c = *in->at++;
            const char *simple = strchr(FROM, c);
            piece[0] = (unsigned char)(simple && c ? TO[simple - FROM] : c);
            if (c == 'u') {
                unsigned code = read_hex(in);
                if ((code & 0xfc00) == 0xd800 && in->end - in->at > 6 && in->at[0] == '\\' && in->at[1] == 'u') {
                    in->at += 2;
                    code = 0x10000 + ((code & 0x3ff) << 10) + (read_hex(in) & 0x3ff);
                }
                length = put_utf8(code, piece);
            }
        }
        if (used + length > most) {  // the end of a text says more of what comes next than its beginning
            memmove(out, out + most / 2, used - most / 2);
            used -= most / 2;
        }
        memcpy(out + used, piece, length);
        used += length;
    }
    return take(in, '"') ? (int32_t)used : -1;
}

// One line that is being written.
struct line {
    char text[32768];
    size_t used;
};

static inline void put(struct line *line, const char *text)
{
    for (; *text && line->used < sizeof line->text; text++) line->text[line->used++] = *text;
}

static inline void put_integer(struct line *line, uint32_t value)
{
    char digits[11];
    int i = sizeof digits - 1;
    digits[i] = 0;
    do digits[--i] = (char)('0' + value % 10);
    while (value /= 10);
    put(line, digits + i);
}

// Six digits behind the point.
static inline void put_real(struct line *line, double value)
{
    if (value < 0) put(line, "-");
    value = (value < 0 ? -value : value) + 0.5e-6;
    put_integer(line, (uint32_t)value);
    const uint32_t fraction = (uint32_t)((value - (double)(uint32_t)value) * 1e6);
    put(line, ".");
    for (uint32_t digit = 100000; digit; digit /= 10) put(line, (char[]){(char)('0' + fraction / digit % 10), 0});
}

// How many bytes of a character begin here: 0 if it is cut off, -1 if it is none.
static inline int character(const unsigned char *at, size_t left)
{
    if (at[0] < 0x80) return 1;
    const int length = at[0] >= 0xf0 && at[0] < 0xf5 ? 4 : at[0] >= 0xe0 && at[0] < 0xf0 ? 3 : at[0] >= 0xc2 && at[0] < 0xe0 ? 2 : -1;
    if (length < 0) return -1;
    for (int i = 1; i < length; i++) {
        if ((size_t)i == left) return 0;
        if ((at[i] & 0xc0) != 0x80) return -1;
    }
    if ((at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xed && at[1] > 0x9f)) return -1;
    if ((at[0] == 0xf0 && at[1] < 0x90) || (at[0] == 0xf4 && at[1] > 0x8f)) return -1;
    return length;
}

// Write bytes as a string. Answers how many were taken: a character that is cut off at the end is left.
static inline size_t put_string(struct line *line, const unsigned char *bytes, size_t count, bool last)
{
    size_t i = 0;
    put(line, "\"");
    while (i < count) {
        const int length = character(bytes + i, count - i);
        if (length == 0 && !last) break;
        if (length <= 0) {
            put(line, "\\ufffd");
            i++;
            continue;
        }
        if (bytes[i] < 0x20 || bytes[i] == '"' || bytes[i] == '\\') {
            static const char HEX[] = "0123456789abcdef";
            put(line, (char[]){'\\', 'u', '0', '0', HEX[bytes[i] >> 4], HEX[bytes[i] & 15], 0});
        } else {
            for (int k = 0; k < length; k++) put(line, (char[]){(char)bytes[i + (size_t)k], 0});
        }
        i += (size_t)length;
    }
    put(line, "\"");
    return i;
}

// Send a line. False if nobody listens any more.
static inline bool send_line(struct line *line)
{
    put(line, "\n");
    const bool sent = tw_emit_chunk(line->text, (uint32_t)line->used) == 0;
    line->used = 0;
    return sent;
}

#endif
