/* What Python sees of direct reads: the types DirectRead and DirectReads. */

#ifndef BATON_DIRECT_TYPES_H
#define BATON_DIRECT_TYPES_H

#include <structmember.h>
#include "direct.h"

static PyTypeObject EXCHANGE;

/* -- a read, as Transfer -------------------------------------------------------------------- */

/* wait(limit_s): what to await until it is over, or so long */
static PyObject *wait_read(DirectRead *read, PyObject *limit_s) {
    if (read->waiter != NULL && !read->handed_out) {
        read->handed_out = 1;   /* `start` has put it under the same limit */
        return Py_NewRef(read->waiter);
    }
    if (read->waiter != NULL && PyDict_DelItem(read->reads->limits, read->waiter) < 0)
        PyErr_Clear();
    PyObject *waiter = PyObject_CallMethodOneArg(read->reads->deadlines, NAMES[WAITER], limit_s);
    if (waiter == NULL)
        return NULL;
    Py_XSETREF(read->waiter, Py_NewRef(waiter));
    if (read->over && !wake(read))
        Py_CLEAR(waiter);
    return waiter;
}

static PyObject *end_portions(DirectRead *read, int portions) {
    read->left -= portions;
    if (read->left == 0 && !end_read(read))
        return NULL;
    Py_RETURN_NONE;
}

/* portion_ended() */
static PyObject *portion_ended(DirectRead *read, PyObject *Py_UNUSED(none)) {
    return end_portions(read, 1);
}

/* give_up(waiting, failure) */
static PyObject *give_up(DirectRead *read, PyObject *args) {
    int waiting;
    PyObject *failure;
    if (!PyArg_ParseTuple(args, "iO", &waiting, &failure))
        return NULL;
    if (read->failure == NULL)
        read->failure = Py_NewRef(failure);
    return end_portions(read, waiting);
}

/* cut_off(failure) */
static PyObject *cut_off(DirectRead *read, PyObject *failure) {
    if (!read->over) {
        Py_XSETREF(read->failure, Py_NewRef(failure));
        if (!end_read(read))
            return NULL;
    }
    Py_RETURN_NONE;
}

/* start_anew() */
static PyObject *start_anew(DirectRead *read, PyObject *Py_UNUSED(none)) {
    Py_CLEAR(read->failure);
    read->over = 0;
    read->left = 1;
    Py_RETURN_NONE;
}

static PyObject *get_portions(DirectRead *read, void *Py_UNUSED(closure)) {
    return PyObject_CallOneArg(read->reads->portions_of, read->pages);
}

static int visit_read(DirectRead *read, visitproc visit, void *arg) {
    Py_VISIT(read->reads);
    Py_VISIT(read->pages);
    Py_VISIT(read->waiter);
    Py_VISIT(read->failure);
    return 0;
}

static int clear_read(DirectRead *read) {
    Py_CLEAR(read->pages);
    Py_CLEAR(read->waiter);
    Py_CLEAR(read->failure);
    return 0;
}

static void free_read(DirectRead *read) {
    PyObject_GC_UnTrack(read);
    clear_read(read);
    Py_CLEAR(read->reads);
    Py_CLEAR(read->ticket);
    Py_TYPE(read)->tp_free((PyObject *)read);
}

static PyMethodDef READ_METHODS[] = {
    {"wait", (PyCFunction)wait_read, METH_O, NULL},
    {"portion_ended", (PyCFunction)portion_ended, METH_NOARGS, NULL},
    {"give_up", (PyCFunction)give_up, METH_VARARGS, NULL},
    {"cut_off", (PyCFunction)cut_off, METH_O, NULL},
    {"start_anew", (PyCFunction)start_anew, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef READ_MEMBERS[] = {
    {"ticket", T_OBJECT, offsetof(DirectRead, ticket), READONLY, NULL},
    {"failure", T_OBJECT, offsetof(DirectRead, failure), READONLY, NULL},
    {"limit_s", T_DOUBLE, offsetof(DirectRead, limit_s), READONLY, NULL},
    {"seconds", T_DOUBLE, offsetof(DirectRead, seconds), READONLY, NULL},
    {"size_bytes", T_ULONGLONG, offsetof(DirectRead, size_bytes), READONLY, NULL},
    {"over", T_BOOL, offsetof(DirectRead, over), READONLY, NULL},
    {"answered", T_BOOL, offsetof(DirectRead, answered), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef READ_ATTRIBUTES[] = {
    {"portions", (getter)get_portions, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject DIRECT_READ = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "exchange.DirectRead",
    .tp_basicsize = sizeof(DirectRead),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = (traverseproc)visit_read,
    .tp_clear = (inquiry)clear_read,
    .tp_dealloc = (destructor)free_read,
    .tp_methods = READ_METHODS,
    .tp_members = READ_MEMBERS,
    .tp_getset = READ_ATTRIBUTES,
};

/* -- all reads of a link -------------------------------------------------------------------- */

/* Two counted words of flow.py: who waits there, and its numbers. */
static int take_counts(PyObject *pair, PyObject **who, Py_buffer *counts, Py_ssize_t many) {
    PyObject *numbers;
    if (!PyArg_ParseTuple(pair, "O!O", &PyDict_Type, who, &numbers))
        return 0;
    Py_INCREF(*who);
    if (PyObject_GetBuffer(numbers, counts, PyBUF_SIMPLE | PyBUF_WRITABLE) < 0)
        return 0;
    if (counts->len == many * (Py_ssize_t)sizeof(int64_t))
        return 1;
    PyErr_SetString(PyExc_ValueError, "not the counts of flow.py");
    return 0;
}

/* DirectReads(exchange, awake, channel, posting, landed, portions_of, new_waiter, deadlines, transfers,
               (queues, counts), (others, counts), room) */
static PyObject *new_reads(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(named)) {
    PyObject *exchange, *awake, *channel, *posting, *landed, *portions_of, *new_waiter;
    PyObject *deadlines, *transfers, *link, *process;
    Py_ssize_t room;
    if (!PyArg_ParseTuple(args, "O!O!OOOOOOO!O!O!n", &EXCHANGE, &exchange, &PyDict_Type,
                          &awake, &channel, &posting, &landed, &portions_of, &new_waiter, &deadlines, &PySet_Type, &transfers,
                          &PyTuple_Type, &link, &PyTuple_Type, &process, &room))
        return NULL;
    DirectReads *reads = (DirectReads *)type->tp_alloc(type, 0);
    if (reads == NULL)
        return NULL;
    reads->exchange = (Exchange *)Py_NewRef(exchange);
    reads->awake = Py_NewRef(awake);
    reads->channel = Py_NewRef(channel);
    reads->posting = Py_NewRef(posting);
    reads->landed = Py_NewRef(landed);
    reads->portions_of = Py_NewRef(portions_of);
    reads->new_waiter = Py_NewRef(new_waiter);
    reads->deadlines = Py_NewRef(deadlines);
    reads->transfers = Py_NewRef(transfers);
    reads->room = room < MOST_PAGES ? room : MOST_PAGES;
    reads->limits = PyObject_GetAttrString(deadlines, "limits");
    if (reads->limits == NULL || !PyDict_Check(reads->limits) ||
        !take_counts(link, &reads->queues, &reads->link, LINK_COUNTS) ||
        !take_counts(process, &reads->others, &reads->process, PROCESS_COUNTS))
        Py_CLEAR(reads);
    return (PyObject *)reads;
}

static int visit_reads(DirectReads *reads, visitproc visit, void *arg) {
    Py_VISIT(reads->awake);
    Py_VISIT(reads->channel);
    Py_VISIT(reads->posting);
    Py_VISIT(reads->landed);
    Py_VISIT(reads->portions_of);
    Py_VISIT(reads->new_waiter);
    Py_VISIT(reads->deadlines);
    Py_VISIT(reads->limits);
    Py_VISIT(reads->transfers);
    Py_VISIT(reads->queues);
    Py_VISIT(reads->others);
    return 0;
}

/* Breaks the only rings: through the link that made us. */
static int clear_reads(DirectReads *reads) {
    Py_CLEAR(reads->channel);
    Py_CLEAR(reads->posting);
    Py_CLEAR(reads->landed);
    return 0;
}

static void free_reads(DirectReads *reads) {
    PyObject_GC_UnTrack(reads);
    clear_reads(reads);
    PyBuffer_Release(&reads->link);
    PyBuffer_Release(&reads->process);
    Py_CLEAR(reads->exchange);
    Py_CLEAR(reads->awake);
    Py_CLEAR(reads->portions_of);
    Py_CLEAR(reads->new_waiter);
    Py_CLEAR(reads->deadlines);
    Py_CLEAR(reads->limits);
    Py_CLEAR(reads->transfers);
    Py_CLEAR(reads->queues);
    Py_CLEAR(reads->others);
    Py_TYPE(reads)->tp_free((PyObject *)reads);
}

static PyMethodDef READS_METHODS[] = {
    {"start", (PyCFunction)(void (*)(void))start, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject DIRECT_READS = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "exchange.DirectReads",
    .tp_basicsize = sizeof(DirectReads),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = new_reads,
    .tp_traverse = (traverseproc)visit_reads,
    .tp_clear = (inquiry)clear_reads,
    .tp_dealloc = (destructor)free_reads,
    .tp_methods = READS_METHODS,
};

static int add_direct(PyObject *module) {
    for (int i = 0; i < HOW_MANY; i++)
        if ((NAMES[i] = PyUnicode_InternFromString(WORDS[i])) == NULL)
            return 0;
    PyObject *asyncio = PyImport_ImportModule("asyncio");
    if (asyncio != NULL)
        INVALID_STATE = PyObject_GetAttrString(asyncio, "InvalidStateError");
    Py_XDECREF(asyncio);
    return INVALID_STATE != NULL && PyType_Ready(&DIRECT_READ) == 0 && PyModule_AddType(module, &DIRECT_READS) == 0;
}

#endif
