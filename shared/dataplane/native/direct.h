/* Reads that go the short way: one run in one portion, with credit, and nobody before it. Such a
   read is asked for in one call and ends in one; whatever else may happen to it, `reader_link`
   decides, to which it is a Transfer like any other (transfer.py says what its methods mean).

   Credit is counted where flow.py counts it. */

#ifndef BATON_DIRECT_H
#define BATON_DIRECT_H

#include "asks_out.h"

/* Places in flow.py's counts. */
enum { SLOTS, FLYING, FLYING_BYTES, WINDOW_BYTES, LINK_COUNTS };
enum { TAKEN_BYTES, LIMIT_BYTES, PROCESS_COUNTS };
enum { LONGEST_ASK = ASK_BYTES + MOST_TICKET_BYTES + RUN_BYTES + 8 * MOST_PAGES };

typedef struct {
    PyObject_HEAD
    Exchange *exchange;
    PyObject *awake, *channel;  /* where the channel stands while it is moved */
    PyObject *posting;          /* wakes it */
    PyObject *landed;           /* the sink of every other read of this link */
    PyObject *portions_of;      /* cuts pages as the long way does */
    PyObject *new_waiter;       /* the loop's create_future */
    PyObject *deadlines, *limits;
    PyObject *transfers;        /* of this link, until they are over */
    PyObject *queues, *others;  /* who waits on this link, and in this process */
    Py_buffer link, process;    /* counts */
    Py_ssize_t room;            /* pages of a portion */
} DirectReads;

typedef struct {
    PyObject_HEAD
    DirectReads *reads;
    PyObject *ticket, *pages, *waiter, *failure;
    double limit_s, seconds;
    uint64_t begun_ns;
    unsigned long long size_bytes;
    int left;                   /* portions: the one, until it has ended */
    char over, answered, handed_out;
} DirectRead;

static PyTypeObject DIRECT_READ;

enum { SOURCE, TARGET, GENERATION, DUE, SET, WAITER, SET_RESULT, HOW_MANY };
static const char *const WORDS[] = {
    "source", "target", "generation", "due_s", "set", "waiter", "set_result",
};
static PyObject *NAMES[HOW_MANY];
static PyObject *INVALID_STATE;     /* what a future raises that is done */

/* -- credit --------------------------------------------------------------------------------- */

static int somebody_waits(const DirectReads *reads) {
    return PyDict_GET_SIZE(reads->queues) != 0 || PyDict_GET_SIZE(reads->others) != 0;
}

/* As Turns.enter. */
static int enter(const DirectReads *reads, int64_t size_bytes) {
    int64_t *link = reads->link.buf, *process = reads->process.buf;
    if (somebody_waits(reads))
        return 0;
    if (link[FLYING] != 0 && (link[FLYING] >= link[SLOTS] ||
                              link[FLYING_BYTES] + size_bytes > link[WINDOW_BYTES]))
        return 0;
    if (process[TAKEN_BYTES] != 0 && process[TAKEN_BYTES] + size_bytes > process[LIMIT_BYTES])
        return 0;
    link[FLYING]++;
    link[FLYING_BYTES] += size_bytes;
    process[TAKEN_BYTES] += size_bytes;
    return 1;
}

/* As Turns.ended, where nobody waits. */
static void leave(const DirectReads *reads, int64_t size_bytes) {
    int64_t *link = reads->link.buf, *process = reads->process.buf;
    link[FLYING]--;
    link[FLYING_BYTES] -= size_bytes;
    process[TAKEN_BYTES] -= size_bytes;
}

/* -- its end -------------------------------------------------------------------------------- */

/* Whoever waits for it goes on. False with an exception set. */
static int wake(DirectRead *read) {
    PyObject *waiter = read->waiter, *told = NULL;
    if (waiter == NULL)
        return 1;
    read->waiter = NULL;
    if (PyDict_DelItem(read->reads->limits, waiter) < 0)
        PyErr_Clear();  /* its limit has passed */
    told = PyObject_CallMethodOneArg(waiter, NAMES[SET_RESULT], Py_None);
    Py_DECREF(waiter);
    Py_XDECREF(told);
    if (told == NULL && PyErr_ExceptionMatches(INVALID_STATE)) {
        PyErr_Clear();  /* whoever waited was cancelled */
        return 1;
    }
    return told != NULL;
}

static int end_read(DirectRead *read) {
    if (read->over)
        return 1;
    read->over = 1;
    read->seconds = (double)(now_ns() - read->begun_ns) / 1e9;
    return wake(read);
}

/* All of it has ended, alike. Good pages and nobody who waits for credit: this is all. */
static int read_landed(PyObject *what, int64_t outcome) {
    DirectRead *read = (DirectRead *)what;
    DirectReads *reads = read->reads;
    if (outcome != ACCEPTED || somebody_waits(reads)) {
        PyObject *done = PyObject_CallFunction(
            reads->landed, "(OO)L", what, what, (long long)outcome);
        Py_XDECREF(done);
        return done != NULL;
    }
    read->answered = 1;
    leave(reads, (int64_t)read->size_bytes);
    reads->exchange->landed = 1;
    return PySet_Discard(reads->transfers, what) >= 0 && end_read(read);
}

/* -- its beginning -------------------------------------------------------------------------- */

typedef struct {
    uint64_t source, target, pages;
} Wanted;

static uint64_t number_of(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object, name);
    uint64_t number = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    return number;
}

/* These pages as the only run of an ask. NULL: they are not one run into ours. */
static unsigned char *put_pages(
    unsigned char *to, const DirectReads *reads, PyObject *pages, Wanted *wanted) {
    Py_ssize_t count = PyList_Check(pages) || PyTuple_Check(pages) ? Py_SIZE(pages) : 0;
    if (count == 0 || count > reads->room)
        return NULL;
    PyObject **items = PySequence_Fast_ITEMS(pages);
    unsigned char *run = to;
    to += RUN_BYTES;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t source = number_of(items[i], NAMES[SOURCE]);
        uint64_t target = number_of(items[i], NAMES[TARGET]);
        to = put(to, number_of(items[i], NAMES[GENERATION]), 8);
        if (PyErr_Occurred() != NULL)
            return NULL;
        if (i == 0)
            *wanted = (Wanted){source, target, (uint64_t)count};
        else if (source != wanted->source + (uint64_t)i || target != wanted->target + (uint64_t)i)
            return NULL;
    }
    uint64_t ours = reads->exchange->pages;
    put(put(run, wanted->source, 4), wanted->pages, 4);
    int fit = wanted->source <= UINT32_MAX && wanted->pages <= ours &&
              wanted->target <= ours - wanted->pages;
    return fit ? to : NULL;
}

/* A read with its waiter under the deadline. */
static DirectRead *new_read(
    DirectReads *reads, PyObject *ticket, PyObject *pages, double timeout_s) {
    DirectRead *read = (DirectRead *)DIRECT_READ.tp_alloc(&DIRECT_READ, 0);
    if (read == NULL)
        return NULL;
    read->reads = (DirectReads *)Py_NewRef(reads);
    read->ticket = Py_NewRef(ticket);
    read->pages = Py_NewRef(pages);
    read->begun_ns = now_ns();
    read->limit_s = (double)read->begun_ns / 1e9 + timeout_s;
    read->left = 1;
    read->waiter = PyObject_CallNoArgs(reads->new_waiter);
    PyObject *limit = PyFloat_FromDouble(read->limit_s);
    PyObject *due = PyObject_GetAttr(reads->deadlines, NAMES[DUE]), *set = NULL;
    int good = read->waiter != NULL && limit != NULL && due != NULL &&
               PyDict_SetItem(reads->limits, read->waiter, limit) == 0;
    if (good && read->limit_s < PyFloat_AsDouble(due)) {
        set = PyObject_CallMethodOneArg(reads->deadlines, NAMES[SET], limit);
        good = set != NULL;
    }
    Py_XDECREF(set);
    Py_XDECREF(due);
    Py_XDECREF(limit);
    if (!good)
        Py_CLEAR(read);
    return read;
}

/* The channel is moved from now on. False with an exception set. */
static int awake(const DirectReads *reads) {
    int known = PyDict_Contains(reads->awake, reads->channel);
    if (known != 0)
        return known > 0;
    PyObject *exchange = PyObject_CallNoArgs(reads->posting);
    Py_XDECREF(exchange);
    return exchange != NULL;
}

/* Ask for `wanted`, of which the ask stands in the frame. NULL with an exception set. */
static PyObject *begin(
    DirectReads *reads, PyObject *ticket, PyObject *pages, double timeout_s, const Wanted *wanted,
    const unsigned char *end) {
    Exchange *exchange = reads->exchange;
    uint64_t size_bytes = wanted->pages * exchange->page_bytes;
    DirectRead *read = new_read(reads, ticket, pages, timeout_s);
    PyObject *told[] = {Py_None, (PyObject *)read};
    Group *group = NULL;
    if (read != NULL && PySet_Add(reads->transfers, (PyObject *)read) == 0)
        group = group_of(exchange, told, PAGES_IN, 1, 0);
    if (group == NULL) {
        leave(reads, (int64_t)size_bytes);
        if (read != NULL)
            PySet_Discard(reads->transfers, (PyObject *)read);
        Py_XDECREF(read);
        return NULL;
    }
    group->land = read_landed;
    read->size_bytes = size_bytes;
    post_receive(group->parts, exchange->address + wanted->target * exchange->page_bytes,
                 size_bytes, keep_ask(exchange, end), RUN_MASK);
    return (PyObject *)read;
}

/* start(ticket, pages, timeout_s): a read; None: it has to go the long way */
static PyObject *start(DirectReads *reads, PyObject *const *given, Py_ssize_t many) {
    if (!enough(many, 3))
        return NULL;
    Exchange *exchange = reads->exchange;
    double timeout_s = PyFloat_AsDouble(given[2]);
    Py_ssize_t ticket_bytes = 0;
    const char *ticket = PyUnicode_AsUTF8AndSize(given[0], &ticket_bytes);
    Wanted wanted = {0};
    unsigned char *to = NULL;
    if (ticket != NULL && ticket_bytes <= MOST_TICKET_BYTES && timeout_s > 0 &&
        timeout_s * 1000 < MOST_TIMEOUT_MS)
        to = room_for_ask(exchange, LONGEST_ASK);
    if (to != NULL) {
        to = put_ask_head(
            to, exchange, (uint64_t)(timeout_s * 1000) + 1, ticket, (size_t)ticket_bytes, 1);
        to = put_pages(to, reads, given[1], &wanted);
    }
    if (to != NULL && awake(reads) &&
        enter(reads, (int64_t)(wanted.pages * exchange->page_bytes)))
        return begin(reads, given[0], given[1], timeout_s, &wanted, to);
    PyErr_Clear();  /* the long way says what is wrong */
    Py_RETURN_NONE;
}

#endif
