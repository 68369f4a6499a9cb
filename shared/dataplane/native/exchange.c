/* The fast implementation of `Exchange`; ucx_exchange.py says what each method means.

   Sinks are called at the end of `turn` only, never from within libucp. One thread, which keeps the
   GIL: to give it away costs 5 ms beside a thread that computes in Python. Memory is bounded by
   what the caller posts. */

#include "asks_in.h"
#include "asks_out.h"
#include "direct_types.h"

enum { CALLS = sizeof(Calls) / sizeof(void *) };

/* -- runs of pages and the asks that name them ---------------------------------------------- */

typedef struct {
    uint64_t first, pages;
    PyObject *generations;
} Run;

/* `place`: which item is the first page here. False with an exception set: not a run of ours. */
static int read_run(const Exchange *exchange, PyObject *item, Py_ssize_t place, Run *run) {
    Py_ssize_t last = PyTuple_Check(item) ? PyTuple_GET_SIZE(item) - 1 : -1;
    if (last < place || !PyTuple_Check(PyTuple_GET_ITEM(item, last))) {
        PyErr_SetString(PyExc_TypeError, "not a run of pages");
        return 0;
    }
    run->generations = PyTuple_GET_ITEM(item, last);
    run->pages = (uint64_t)PyTuple_GET_SIZE(run->generations);
    run->first = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(item, place));
    if (PyErr_Occurred() != NULL)
        return 0;
    if (run->pages < 1 || run->first >= exchange->pages ||
        run->pages > exchange->pages - run->first) {
        PyErr_SetString(PyExc_IndexError, "pages that are not ours");
        return 0;
    }
    return 1;
}

/* Returns the end, or NULL with an exception set. */
static unsigned char *put_runs(unsigned char *to, PyObject *runs) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(runs); i++) {
        PyObject *run = PyTuple_GET_ITEM(runs, i);
        PyObject *generations = PyTuple_GET_ITEM(run, PyTuple_GET_SIZE(run) - 1);
        Py_ssize_t pages = PyTuple_GET_SIZE(generations);
        uint64_t source = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(run, 0));
        if (source > UINT32_MAX && PyErr_Occurred() == NULL)
            PyErr_SetString(PyExc_OverflowError, "a page beyond all memories");
        to = put(to, source, 4);
        to = put(to, (uint64_t)pages, 4);
        for (Py_ssize_t k = 0; k < pages; k++)
            to = put(to, PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(generations, k)), 8);
    }
    return PyErr_Occurred() == NULL ? to : NULL;
}

/* The arguments that `ask` and `give` share. */
static Py_ssize_t count_of(PyObject *runs) {
    if (PyTuple_Check(runs) && PyTuple_GET_SIZE(runs) > 0 && PyTuple_GET_SIZE(runs) <= MOST_RUNS)
        return PyTuple_GET_SIZE(runs);
    PyErr_SetString(PyExc_ValueError, "runs are a tuple, and few");
    return -1;
}

/* ask(runs, ticket, timeout_ms, sink, what); runs of (source, target, generations) */
static PyObject *ask(Exchange *exchange, PyObject *const *given, Py_ssize_t many) {
    if (!enough(many, 5))
        return NULL;
    PyObject *runs = given[0];
    Py_ssize_t count = count_of(runs), ticket_bytes;
    const char *ticket = PyUnicode_AsUTF8AndSize(given[1], &ticket_bytes);
    uint64_t timeout_ms = PyLong_AsUnsignedLongLong(given[2]);
    if (count < 0 || ticket == NULL || PyErr_Occurred() != NULL)
        return NULL;
    Run read[MOST_RUNS];
    size_t size_bytes = ASK_BYTES + (size_t)ticket_bytes;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_run(exchange, PyTuple_GET_ITEM(runs, i), 1, &read[i]))
            return NULL;
        size_bytes += RUN_BYTES + 8 * read[i].pages;
    }
    if (size_bytes > MOST_BYTES - HEADER_BYTES)
        return PyErr_Format(PyExc_ValueError, "an ask of %zu bytes", size_bytes);
    unsigned char *to = room_for_ask(exchange, size_bytes);
    if (to != NULL)
        to = put_ask_head(
            to, exchange, timeout_ms, ticket, (size_t)ticket_bytes, (uint64_t)count);
    if (to != NULL)
        to = put_runs(to, runs);
    Group *group = to == NULL ? NULL : group_of(exchange, given + 3, PAGES_IN, (uint32_t)count, 0);
    if (group == NULL)
        return NULL;
    uint64_t tag = keep_ask(exchange, to);
    for (Py_ssize_t i = 0; i < count; i++, tag += RUN_STEP)
        post_receive(&group->parts[i], exchange->address + read[i].first * exchange->page_bytes,
                     read[i].pages * exchange->page_bytes, tag, RUN_MASK);
    Py_RETURN_NONE;
}

/* give(runs, tag, answer, sink, what); runs of (first, generations) */
static PyObject *give(Exchange *exchange, PyObject *const *given, Py_ssize_t many) {
    if (!enough(many, 5))
        return NULL;
    PyObject *runs = given[0];
    Py_ssize_t count = count_of(runs);
    uint64_t tag = PyLong_AsUnsignedLongLong(given[1]);
    uint64_t answer = PyLong_AsUnsignedLongLong(given[2]);
    if (count < 0 || PyErr_Occurred() != NULL)
        return NULL;
    Run read[MOST_RUNS] = {0};
    for (Py_ssize_t i = 0; i < count && answer == ACCEPTED; i++)
        if (!read_run(exchange, PyTuple_GET_ITEM(runs, i), 0, &read[i]))
            return NULL;
    Group *group = group_of(exchange, given + 3, PAGES_OUT, (uint32_t)count, 0);
    if (group == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++, tag += RUN_STEP)
        post_send(&group->parts[i],
                  (void *)(exchange->address + read[i].first * exchange->page_bytes),
                  read[i].pages * exchange->page_bytes, tag | answer);
    Py_RETURN_NONE;
}

/* say(tag, message) */
static PyObject *say(Exchange *exchange, PyObject *args) {
    unsigned long long tag;
    const char *message;
    Py_ssize_t size_bytes;
    if (!PyArg_ParseTuple(args, "Ky#", &tag, &message, &size_bytes))
        return NULL;
    if (!post_message(exchange, tag, message, (size_t)size_bytes))
        return NULL;
    Py_RETURN_NONE;
}

/* hear(tag, address, size_bytes, sink, what) */
static PyObject *hear(Exchange *exchange, PyObject *const *given, Py_ssize_t many) {
    if (!enough(many, 5))
        return NULL;
    uint64_t tag = PyLong_AsUnsignedLongLong(given[0]);
    uint64_t where = PyLong_AsUnsignedLongLong(given[1]);
    uint64_t size_bytes = PyLong_AsUnsignedLongLong(given[2]);
    Group *group = PyErr_Occurred() ? NULL : group_of(exchange, given + 3, MESSAGE_IN, 1, 0);
    if (group == NULL)
        return NULL;
    post_receive(group->parts, where, size_bytes, tag, WHOLE_TAG);
    Py_RETURN_NONE;
}

/* -- turns ---------------------------------------------------------------------------------- */

/* The first group that has ended leaves the ring. */
static Group *take_ended(Exchange *exchange) {
    Group *group = exchange->ended.after;
    take_out(group);
    return group;
}

static void forget(Group *group) {
    Py_DECREF(group->sink);
    Py_DECREF(group->what);
    free(group);
}

static void forget_ended(Exchange *exchange) {
    while (exchange->ended.after != &exchange->ended)
        forget(take_ended(exchange));
}

static int tell(const Group *group) {
    if (group->land != NULL)
        return group->land(group->what, group->outcome);
    PyObject *outcome = PyLong_FromLongLong(group->outcome);
    if (outcome == NULL)
        return 0;
    PyObject *given[] = {group->what, outcome};
    PyObject *done = PyObject_Vectorcall(group->sink, given, 2, NULL);
    Py_DECREF(outcome);
    Py_XDECREF(done);
    return done != NULL;
}

/* Move, then tell what has ended. -1 with an exception set; else whether anything moved or ended. */
static int move_and_tell(Exchange *exchange, uint64_t patience_ns) {
    move(exchange, patience_ns);
    /* A sink may post, which can end at once and then waits for the next turn; or stop us. */
    const Group *last = exchange->ended.before;
    int more = last != &exchange->ended, told = exchange->moved || more, good = 1;
    while (more && good && !exchange->silent) {
        more = exchange->ended.after != last;
        Group *group = take_ended(exchange);
        good = tell(group);
        forget(group);
    }
    if (exchange->silent)
        forget_ended(exchange);
    return good ? told : -1;
}

/* turn(patience_ns): 0 nothing, 1 something moved or ended, 2 a direct read landed too */
static PyObject *turn(Exchange *exchange, PyObject *patience) {
    uint64_t patience_ns = PyLong_AsUnsignedLongLong(patience);
    if (PyErr_Occurred() != NULL || !say_asks(exchange))
        return NULL;
    exchange->landed = 0;
    int told = move_and_tell(exchange, patience_ns);
    /* The loop turns before we do: take along what has landed meanwhile. */
    if (told > 0 && exchange->landed && !exchange->silent && move_and_tell(exchange, 0) < 0)
        told = -1;
    return told < 0 ? NULL : PyLong_FromLong(exchange->landed ? 2 : told);
}

/* stop(): nothing is said and no sink is told from now on, and every receive is cancelled */
static PyObject *stop(Exchange *exchange, PyObject *Py_UNUSED(none)) {
    exchange->silent = 1;
    exchange->asks = 0;     /* the endpoint may be gone */
    for (Group *group = exchange->open.after, *after; group != &exchange->open; group = after) {
        after = group->after;
        if (group->kind == PAGES_OUT || group->kind == MESSAGE_OUT)
            continue;
        /* A group whose last part ends at once has left the ring, but is not freed yet. */
        for (uint32_t i = 0, count = group->count; i < count; i++)
            if (group->parts[i].request != NULL)
                exchange->calls.cancel(exchange->worker, group->parts[i].request);
    }
    Py_RETURN_NONE;
}

/* -- the type ------------------------------------------------------------------------------- */

/* connect(endpoint, first_tag) */
static PyObject *connect_to(Exchange *exchange, PyObject *const *given, Py_ssize_t many) {
    if (!enough(many, 2))
        return NULL;
    exchange->endpoint = PyLong_AsVoidPtr(given[0]);
    exchange->tag = PyLong_AsUnsignedLongLong(given[1]);
    if (PyErr_Occurred() != NULL)
        return NULL;
    Py_RETURN_NONE;
}

/* Exchange(calls, worker, address, page_bytes, pages) */
static PyObject *new_exchange(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *calls;
    unsigned long long worker, address, page_bytes, pages;
    if (!PyArg_ParseTuple(
            args, "O!KKKK", &PyTuple_Type, &calls, &worker, &address, &page_bytes, &pages))
        return NULL;
    if (!enough(PyTuple_GET_SIZE(calls), CALLS))
        return NULL;
    void *found[CALLS];
    for (int i = 0; i < CALLS; i++)
        found[i] = PyLong_AsVoidPtr(PyTuple_GET_ITEM(calls, i));
    if (PyErr_Occurred() != NULL)
        return NULL;
    Exchange *exchange = (Exchange *)type->tp_alloc(type, 0);
    if (exchange == NULL)
        return NULL;
    memcpy(&exchange->calls, found, sizeof(Calls));
    exchange->worker = (ucp_worker_h)(uintptr_t)worker;
    exchange->address = address;
    exchange->page_bytes = page_bytes;
    exchange->pages = pages;
    exchange->frame_bytes = HEADER_BYTES;
    exchange->open.before = exchange->open.after = &exchange->open;
    exchange->ended.before = exchange->ended.after = &exchange->ended;
    return (PyObject *)exchange;
}

/* What libucp still knows stays in memory. */
static void free_exchange(Exchange *exchange) {
    if (exchange->unfinished != 0)
        return;
    forget_ended(exchange);
    Py_TYPE(exchange)->tp_free((PyObject *)exchange);
}

static PyObject *get_unfinished(Exchange *exchange, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(exchange->unfinished);
}

static PyObject *get_broken(Exchange *exchange, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(exchange->broken);
}

static PyMethodDef METHODS[] = {
    {"connect", (PyCFunction)(void (*)(void))connect_to, METH_FASTCALL, NULL},
    {"ask", (PyCFunction)(void (*)(void))ask, METH_FASTCALL, NULL},
    {"give", (PyCFunction)(void (*)(void))give, METH_FASTCALL, NULL},
    {"say", (PyCFunction)say, METH_VARARGS, NULL},
    {"hear", (PyCFunction)(void (*)(void))hear, METH_FASTCALL, NULL},
    {"turn", (PyCFunction)turn, METH_O, NULL},
    {"stop", (PyCFunction)stop, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef ATTRIBUTES[] = {
    {"unfinished", (getter)get_unfinished, NULL, NULL, NULL},
    {"broken", (getter)get_broken, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject EXCHANGE = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "exchange.Exchange",
    .tp_basicsize = sizeof(Exchange),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_exchange,
    .tp_dealloc = (destructor)free_exchange,
    .tp_methods = METHODS,
    .tp_getset = ATTRIBUTES,
};

static PyMethodDef FUNCTIONS[] = {
    {"asks_in", asks_in, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, .m_name = "exchange", .m_size = -1, .m_methods = FUNCTIONS,
};

PyMODINIT_FUNC PyInit_exchange(void) {
    PyObject *module = PyModule_Create(&MODULE);
    if (module == NULL || PyModule_AddType(module, &EXCHANGE) < 0 || !add_direct(module))
        Py_CLEAR(module);
    return module;
}
