/* The numbers of a link's frames, as link_wire.py has them. */

#ifndef BATON_LINK_H
#define BATON_LINK_H

enum { ASK_TAG = 1, ASK_KIND = 2, HEADER_BYTES = 5, ASK_BYTES = 30, RUN_BYTES = 8, RUN_STEP = 8 };
enum { NUMBER_BYTES = 4 };     /* of an ask, first */
enum { ACCEPTED = 0, ANSWERS = 4 };
enum { MOST_BYTES = 1 << 14, MOST_ASKS = 16, MOST_PAGES = 512, MOST_RUNS = MOST_PAGES };
enum { MOST_TICKET_BYTES = 512, MOST_TIMEOUT_MS = 600000, TAG_STEP = 1 << 20 };

#endif
