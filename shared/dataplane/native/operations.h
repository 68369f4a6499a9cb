/* Operations of one UCX worker, in groups that end as one: all runs of pages of an ask, or one
   message. What has ended waits in a ring until the owner of the exchange looks.

   Nothing here looks at bytes that a peer sent: of a message only its length and tag count. libucp
   calls us back within `progress`, also where ucxx drives it without the GIL: those functions touch
   no Python object. */

#ifndef BATON_OPERATIONS_H
#define BATON_OPERATIONS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include "link.h"

enum { OPEN = -2, FAILED = -1 };        /* outcomes that are no answer and no length */

static const uint64_t WHOLE_TAG = ~(uint64_t)0;
static const uint64_t RUN_MASK = ~(uint64_t)(RUN_STEP - 1);
static const uint64_t LONGEST_TURN_NS = 200000;
enum { CALLS_PER_LOOK = 8 };    /* the clock costs as much as a progress call that finds nothing */

/* The library is the one that ucxx has loaded; the caller hands us its functions in this order. */
typedef struct {
    __typeof__(&ucp_worker_progress) progress;
    __typeof__(&ucp_tag_send_nbx) send;
    __typeof__(&ucp_tag_recv_nbx) receive;
    __typeof__(&ucp_request_cancel) cancel;
    __typeof__(&ucp_request_free) release;
} Calls;

typedef struct Group Group;

typedef struct {
    Group *group;
    void *request;      /* NULL once it has ended */
    uint64_t size_bytes;
} Part;

struct Group {
    struct Exchange *exchange;
    Group *before, *after;
    PyObject *sink;     /* NULL: nobody waits to hear of it, unless it fails */
    PyObject *what;     /* the sink's word for it */
    int (*land)(PyObject *what, int64_t outcome);   /* instead of the sink; NULL: none */
    int64_t outcome;    /* of received pages an answer, of a message its length, of a send 0 */
    enum { PAGES_OUT, PAGES_IN, MESSAGE_OUT, MESSAGE_IN } kind;
    uint32_t left;
    uint32_t count;
    Part parts[];       /* followed by the content of a message of ours */
};

typedef struct Exchange {
    PyObject_HEAD
    Calls calls;
    ucp_worker_h worker;
    ucp_ep_h endpoint;
    uint64_t address;       /* of our pages */
    uint64_t page_bytes;
    uint64_t pages;
    Group open, ended;      /* heads of rings */
    int64_t unfinished;     /* groups in `open` */
    char moved, broken, silent, landed;
    uint32_t number;        /* of the next ask */
    uint64_t tag;           /* of its first run */
    uint32_t asks;          /* that wait in `frame` for the next turn */
    uint32_t frame_bytes;
    unsigned char frame[MOST_BYTES];
} Exchange;

static int enough(Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted)
        return 1;
    PyErr_Format(PyExc_TypeError, "takes %zd arguments", wanted);
    return 0;
}

/* -- groups ------------------------------------------------------------------------------- */

static void put_last(Group *head, Group *group) {
    group->before = head->before;
    group->after = head;
    head->before->after = group;
    head->before = group;
}

static void take_out(Group *group) {
    group->before->after = group->after;
    group->after->before = group->before;
}

/* `told`: the sink and its word for this; NULL: nobody. */
static Group *group_of(
    Exchange *exchange, PyObject *const *told, int kind, uint32_t count, size_t extra) {
    Group *group = malloc(sizeof(Group) + count * sizeof(Part) + extra);
    if (group == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *group = (Group){.exchange = exchange, .outcome = OPEN, .kind = kind, .left = count,
                     .count = count};
    if (told != NULL) {
        group->sink = Py_NewRef(told[0]);
        group->what = Py_NewRef(told[1]);
    }
    for (uint32_t i = 0; i < count; i++)
        group->parts[i] = (Part){.group = group};
    put_last(&exchange->open, group);
    exchange->unfinished++;
    return group;
}

/* One part has ended. Parts that disagree are a failure of the whole group. */
static void settle(Part *part, int64_t outcome) {
    Group *group = part->group;
    part->request = NULL;
    if (group->outcome == OPEN)
        group->outcome = outcome;
    else if (group->outcome != outcome)
        group->outcome = FAILED;
    if (--group->left != 0)
        return;
    group->exchange->unfinished--;
    take_out(group);
    if (group->sink != NULL) {
        put_last(&group->exchange->ended, group);
        return;
    }
    if (group->outcome == FAILED)
        group->exchange->broken = 1;
    free(group);
}

/* Pages count only when their whole length came as accepted; a refusal is empty. */
static int64_t judged(const Part *part, ucs_status_t status, const ucp_tag_recv_info_t *found) {
    if (status != UCS_OK)
        return FAILED;
    if (part->group->kind == MESSAGE_IN)
        return (int64_t)found->length;
    int64_t answer = (int64_t)(found->sender_tag & ~RUN_MASK);
    if (found->length != 0)
        return answer == ACCEPTED && found->length == part->size_bytes ? ACCEPTED : FAILED;
    return answer != ACCEPTED && answer < ANSWERS ? answer : FAILED;
}

/* -- what libucp calls, within a progress call of ours ------------------------------------- */

static void sent(void *request, ucs_status_t status, void *user) {
    Part *part = user;
    part->group->exchange->calls.release(request);
    settle(part, status == UCS_OK ? 0 : FAILED);
}

static void received(
    void *request, ucs_status_t status, const ucp_tag_recv_info_t *found, void *user) {
    Part *part = user;
    part->group->exchange->calls.release(request);
    settle(part, judged(part, status, found));
}

/* -- posting: what is refused fails, as if the peer had gone ------------------------------- */

static void post_receive(Part *part, uint64_t where, uint64_t size_bytes, uint64_t tag,
                         uint64_t mask) {
    Exchange *exchange = part->group->exchange;
    ucp_tag_recv_info_t found;
    ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_RECV_INFO,
        .cb.recv = received,
        .user_data = part,
        .recv_info.tag_info = &found,
    };
    part->size_bytes = size_bytes;
    ucs_status_ptr_t request =
        exchange->calls.receive(exchange->worker, (void *)where, size_bytes, tag, mask, &parameters);
    if (UCS_PTR_IS_ERR(request))
        settle(part, FAILED);
    else if (request == NULL)
        settle(part, judged(part, UCS_OK, &found));
    else
        part->request = request;
}

static void post_send(Part *part, const void *where, size_t size_bytes, uint64_t tag) {
    Exchange *exchange = part->group->exchange;
    ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = sent,
        .user_data = part,
    };
    ucs_status_ptr_t request =
        exchange->calls.send(exchange->endpoint, where, size_bytes, tag, &parameters);
    if (UCS_PTR_IS_ERR(request))
        settle(part, FAILED);
    else if (request == NULL)
        settle(part, 0);
    else
        part->request = request;
}

/* Send a copy. False with an exception set: no memory. */
static int post_message(Exchange *exchange, uint64_t tag, const void *content, size_t size_bytes) {
    Group *group = group_of(exchange, NULL, MESSAGE_OUT, 1, size_bytes);
    if (group == NULL)
        return 0;
    post_send(group->parts, memcpy(&group->parts[1], content, size_bytes), size_bytes, tag);
    return 1;
}

/* -- moving --------------------------------------------------------------------------------- */

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Move bytes until something has ended, or for so long while nothing moves. */
static void move(Exchange *exchange, uint64_t patience_ns) {
    const Group *ended = &exchange->ended;
    uint64_t started_ns = 0, moved_ns = 0;
    unsigned stirred = 0;   /* since the last look at the clock */
    exchange->moved = 0;
    for (unsigned calls = 0; ended->after == ended; calls++) {
        unsigned moved = exchange->calls.progress(exchange->worker);
        if (moved == 0 && patience_ns == 0)
            return;
        stirred |= moved;
        if (moved != 0)
            exchange->moved = 1;
        if (calls % CALLS_PER_LOOK != 0)
            continue;
        uint64_t now = now_ns();
        if (started_ns == 0)
            started_ns = now;
        if (stirred != 0 || moved_ns == 0)
            moved_ns = now;
        stirred = 0;
        if (now - moved_ns > patience_ns || now - started_ns > LONGEST_TURN_NS)
            return;
    }
}

#endif
