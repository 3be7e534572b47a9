#include "textflag.h"

// Offsets in a block; they stand in shared_amd64.go too.
#define ALL	96
#define OLD	104
#define FAILED	112
#define ERRNO	120
#define STEPS	192

// func cloneShared(block uintptr) (pid int)
//
// The child has no stack of its own and touches none: it makes the steps of the
// block, reading them and writing FAILED and ERRNO alone, with every signal
// blocked, and never returns.
TEXT ·cloneShared(SB),NOSPLIT,$0-16
	MOVQ	block+0(FP), R12
	MOVL	$14, AX			// rt_sigprocmask
	MOVL	$2, DI			// SIG_SETMASK
	LEAQ	ALL(R12), SI
	LEAQ	OLD(R12), DX
	MOVL	$8, R10
	SYSCALL
	MOVL	$435, AX		// clone3
	MOVQ	R12, DI
	MOVL	$88, SI
	SYSCALL
	TESTQ	AX, AX
	JEQ	child
	MOVQ	AX, R13
	MOVL	$14, AX
	MOVL	$2, DI
	LEAQ	OLD(R12), SI
	XORL	DX, DX
	MOVL	$8, R10
	SYSCALL
	MOVQ	R13, pid+8(FP)
	RET
child:
	XORL	R13, R13		// number of the step
	LEAQ	STEPS(R12), BX
step:
	MOVQ	0(BX), AX
	MOVQ	8(BX), DI
	MOVQ	16(BX), SI
	MOVQ	24(BX), DX
	MOVQ	32(BX), R10
	MOVQ	40(BX), R8
	MOVQ	48(BX), R9
	SYSCALL
	CMPQ	AX, $-4095
	JCC	error			// unsigned: an errno
	MOVQ	56(BX), CX		// wanted result; -1: any
	CMPQ	CX, $-1
	JEQ	next
	CMPQ	AX, CX
	JEQ	next
	MOVQ	$-71, AX		// EPROTO
	JMP	error
next:
	ADDQ	$64, BX
	INCQ	R13
	JMP	step
error:
	NEGQ	AX
	MOVQ	R13, FAILED(R12)
	MOVQ	AX, ERRNO(R12)
exit:
	MOVL	$231, AX		// exit_group
	MOVL	$253, DI
	SYSCALL
	JMP	exit
