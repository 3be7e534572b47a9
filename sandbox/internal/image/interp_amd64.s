#include "textflag.h"

// start and interp, in this order and each up to its END, are the text of the
// image that runs as PID 1. They are position independent, use no stack and call
// nothing. The layout of a step and of the writable page stands in program.go and
// regs.go.

#define REGS	0x500000
#define SET	0xffff
#define END	BYTE $0x0f; BYTE $0x0b; BYTE $0x50; BYTE $0x46; BYTE $0x4c; BYTE $0x44; BYTE $0x45; BYTE $0x44

// start finds the registers and the steps, and runs into interp.
TEXT ·start(SB),NOSPLIT|NOFRAME,$0-0
	MOVL	$REGS, R13
	MOVQ	0(R13), R12		// register 0 begins as the address of the steps
	END

// interp makes the steps from R12 on with the registers at R13. It never returns.
TEXT ·interp(SB),NOSPLIT|NOFRAME,$0-0
loop:
	MOVQ	8(R12), DI
	MOVQ	16(R12), SI
	MOVQ	24(R12), DX
	MOVQ	32(R12), R10
	MOVQ	40(R12), R8
	MOVQ	48(R12), R9
	MOVBLZX	4(R12), AX		// which arguments are registers
	TESTL	$1, AX
	JEQ	arg1
	MOVQ	(R13)(DI*8), DI
arg1:
	TESTL	$2, AX
	JEQ	arg2
	MOVQ	(R13)(SI*8), SI
arg2:
	TESTL	$4, AX
	JEQ	arg3
	MOVQ	(R13)(DX*8), DX
arg3:
	TESTL	$8, AX
	JEQ	arg4
	MOVQ	(R13)(R10*8), R10
arg4:
	TESTL	$16, AX
	JEQ	arg5
	MOVQ	(R13)(R8*8), R8
arg5:
	TESTL	$32, AX
	JEQ	call
	MOVQ	(R13)(R9*8), R9
call:
	MOVWLZX	0(R12), AX
	CMPL	AX, $SET
	JEQ	set
	SYSCALL
	CMPQ	AX, $-4095
	JCC	error
	JMP	result
set:
	MOVQ	DI, AX
result:
	MOVBLZX	5(R12), CX
	MOVQ	AX, (R13)(CX*8)		// register 0 is a sink
	MOVLQSX	56(R12), DX		// operand
	MOVBLZX	6(R12), BX		// flags
	TESTL	$1, BX
	JEQ	compare
	MOVQ	(R13)(DX*8), DX
compare:
	CMPQ	AX, DX
	JEQ	equal
	TESTL	$2, BX			// wanted
	JNE	unwanted
	TESTL	$4, BX			// jump when it differs
	JNE	jump
next:
	ADDQ	$64, R12
	JMP	loop
equal:
	TESTL	$8, BX			// jump when it is equal
	JEQ	next
jump:
	MOVLQSX	60(R12), CX
	ADDQ	CX, R12
	JMP	loop
error:
	NEGQ	AX
	MOVBLZX	7(R12), CX		// the errno that counts as 0
	CMPL	AX, CX
	JNE	fail
	XORL	AX, AX
	JMP	result
unwanted:
	MOVL	$71, AX			// EPROTO
fail:
	MOVWLZX	2(R12), CX		// {2, step, errno, 0} to the status socket
	SHLQ	$32, CX
	ORQ	$2, CX
	MOVQ	CX, 8(R13)
	MOVQ	AX, 16(R13)
	MOVQ	24(R13), DI
	LEAQ	8(R13), SI
	MOVL	$16, DX
	MOVL	$1, AX			// write
	SYSCALL
exit:
	MOVL	$253, DI
	MOVL	$231, AX		// exit_group
	SYSCALL
	JMP	exit
	END

// func text() (start, interp uintptr)
TEXT ·text(SB),NOSPLIT,$0-16
	LEAQ	·start(SB), AX
	MOVQ	AX, start+0(FP)
	LEAQ	·interp(SB), AX
	MOVQ	AX, interp+8(FP)
	RET
