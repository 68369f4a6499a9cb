/* Asks that leave with the next turn, in one frame; as link_wire.Ask.encode has them. */

#ifndef BATON_ASKS_OUT_H
#define BATON_ASKS_OUT_H

#include "operations.h"

static unsigned char *put(unsigned char *to, uint64_t number, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
        *to++ = (unsigned char)(number >> shift);
    return to;
}

/* Send the asks that wait. False with an exception set. */
static int say_asks(Exchange *exchange) {
    uint32_t size_bytes = exchange->frame_bytes;
    if (exchange->asks == 0)
        return 1;
    exchange->frame[0] = ASK_KIND;
    put(exchange->frame + 1, size_bytes - HEADER_BYTES, 4);
    exchange->asks = 0;
    exchange->frame_bytes = HEADER_BYTES;
    return post_message(exchange, ASK_TAG, exchange->frame, size_bytes);
}

/* Where the next ask goes, with room for so many bytes: those that wait leave first where there is
   none. NULL with an exception set. */
static unsigned char *room_for_ask(Exchange *exchange, size_t size_bytes) {
    if (exchange->asks == MOST_ASKS || size_bytes > MOST_BYTES - exchange->frame_bytes)
        if (!say_asks(exchange))
            return NULL;
    return exchange->frame + exchange->frame_bytes;
}

/* All before the runs. */
static unsigned char *put_ask_head(
    unsigned char *to, const Exchange *exchange, uint64_t timeout_ms, const char *ticket,
    size_t ticket_bytes, uint64_t runs) {
    to = put(to, exchange->number, 4);
    to = put(to, exchange->tag, 8);
    to = put(to, exchange->page_bytes, 8);
    to = put(to, timeout_ms, 4);
    to = put(to, ticket_bytes, 2);
    to = put(to, runs, 4);
    return (unsigned char *)memcpy(to, ticket, ticket_bytes) + ticket_bytes;
}

/* The ask that was put last stays. Returns the tag of its first run. */
static uint64_t keep_ask(Exchange *exchange, const unsigned char *end) {
    uint64_t tag = exchange->tag;
    exchange->frame_bytes = (uint32_t)(end - exchange->frame);
    exchange->asks++;
    exchange->number++;
    exchange->tag += TAG_STEP;
    return tag;
}

#endif
